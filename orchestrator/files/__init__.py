"""Files on disk: written whole, read with their faults reported, trusted by who may write them."""
