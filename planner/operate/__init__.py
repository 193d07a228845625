"""What is decided while jobs run: repairs, slices, shifted jobs, where to look."""
