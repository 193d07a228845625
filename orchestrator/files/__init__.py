"""Files on disk: written whole, read with their faults told, trusted by who may write them."""
