"""A lab's figures for Prometheus, from the run store and the journals; nothing is written, no
device or host is asked.
"""
