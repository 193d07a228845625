"""What is decided while jobs run: repairs, circuits of a region, slices, shifted jobs, where to look."""
