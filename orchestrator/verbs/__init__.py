"""The commands as functions. The only package that changes cross-connects or routes."""
