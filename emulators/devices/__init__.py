"""Emulated devices: what they say (dialects), over what (transports), and how they fail."""
