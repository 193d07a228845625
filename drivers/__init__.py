"""Access to real devices. Start reading at `drivers.api`."""
