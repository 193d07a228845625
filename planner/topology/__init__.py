"""Which topology: the methods, from one that ignores traffic to those that search."""
