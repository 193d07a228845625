"""TCP's congestion control of a job's connections."""
