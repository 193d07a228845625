"""Sums and exchanges over rings, datagrams and packet switches, and how their connections are
replaced.
"""
