"""Mechanisms that are a folder each: what a plan knows of one, what is done with it, and how it is
shown.
"""
