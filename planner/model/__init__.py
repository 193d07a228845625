"""What a design is about, as values: the traffic of a job, a topology, orders of ranks."""
