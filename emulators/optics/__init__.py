"""The optics of devices: what light does in them, without a clock of their own."""
