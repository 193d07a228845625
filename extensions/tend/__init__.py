"""Plans are tried on the lab while its job runs, and what does not make it faster is taken back
(`testbed service start tend`).
"""
