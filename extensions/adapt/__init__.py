"""Circuits of a job's regions that follow its traffic while it runs
(`testbed service start adapt`).
"""
