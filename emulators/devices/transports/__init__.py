"""The transports of an emulated device: TCP, telnet, SSH, NETCONF over SSH, a serial line."""
