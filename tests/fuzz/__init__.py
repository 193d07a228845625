"""Fuzzing of every reader of text that somebody else wrote: `make fuzz`; the kept corpus is run by
pytest.
"""
