"""TCP connections of this host: what the kernel has for them, and pushes after a hold."""
