"""What is measured: counters of ports, GPUs and processors, paths, far ends, test traffic."""
