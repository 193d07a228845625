"""What is decided while jobs run: repairs, slices, where to look."""
