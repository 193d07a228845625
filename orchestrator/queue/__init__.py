"""The queue of jobs that wait for hosts of a lab: what it does about each, and the process that
does it.
"""
