"""The Grafana dashboards: `python -m dashboards` writes the committed JSON from these modules."""
