"""What packet switches do with packets of a job: add vectors of numbers, or answer from what they
stored.
"""
