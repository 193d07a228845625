"""A congestion control has no figures of its own: what it does shows in those of iterations and of links."""

VIEW = None
