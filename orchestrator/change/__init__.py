"""One change carried out: staged, switched, committed, verified, and rolled back if it fails."""
