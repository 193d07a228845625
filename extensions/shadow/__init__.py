"""A process beside a job that keeps its weights by following its traffic: a checkpoint of every
iteration.
"""
