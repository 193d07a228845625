"""One suite for every driver: what it declares is confirmed against an emulator's glass, or on a
real device with care.
"""
