"""A host that keeps a job's checkpoints, which the ranks send it at a rate of their own."""
