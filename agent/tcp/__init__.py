"""TCP connections of this host: congestion control, and pushes after a hold."""
