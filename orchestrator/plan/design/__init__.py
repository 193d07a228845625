"""Plans designed for a workload: topology, placement, prices, files for other tools. Pure."""
