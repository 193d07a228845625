"""Runs the trials of a campaign on the workers of a Dask cluster, and keeps their results."""
