"""The agent: the program that runs as root on every host.

Python 3.9 and the standard library only. docs/reference/agent.md describes its wire format.
"""
