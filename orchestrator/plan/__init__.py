"""What is wanted, read from a file or designed, and what it means on this lab now. Pure."""
