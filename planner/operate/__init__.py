"""What is decided while jobs run: repairs, circuits of a region, slices, where to look."""
