"""One change carried out: staged, switched, committed, verified, and taken back where it fails."""
