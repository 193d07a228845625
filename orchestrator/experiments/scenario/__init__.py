"""Arms measured alternately on one lab: what `compare` and `reproduce` of `experiment` do, kept in
a record.
"""
