"""What the files of scenarios and campaigns say; pure."""
