"""Bytes between ranks: connections, datagrams, the loop that carries them, and what ranks agree
on.
"""
