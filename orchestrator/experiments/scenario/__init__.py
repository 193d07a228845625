"""Arms measured alternately on one lab: what `compare` and `reproduce` do, kept in a record after every measurement."""
