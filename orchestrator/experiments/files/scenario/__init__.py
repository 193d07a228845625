"""Scenario files (`testbed.scenario/1`): arms that are measured against each other, and what counts
as reproduced. Pure.
"""
