"""The jobs of one owner on one lab: launched, kept in line with the plan, looked at, ended; and
what they have while they run.
"""
