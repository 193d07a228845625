"""The running lab: devices and fabric together, its control socket, the faults of hosts and
links.
"""
