"""One SQLite file: runs, steps, owners, locks, tag-outs, confirmations."""
