"""How to reach real devices. Start reading at `drivers.api`."""
