"""Topologies in formats of other programs: GraphML is read, containerlab's files are read and
written. Pure.
"""
