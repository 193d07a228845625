"""The lab as values, read from three files with line and column. Pure."""
