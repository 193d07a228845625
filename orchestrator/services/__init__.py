"""What runs on when a command has ended: the guard of a plan, the schedule of its slots."""
