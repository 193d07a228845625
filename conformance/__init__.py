"""One suite for every driver: what it declares is confirmed against an emulator's light path, or on
a real device with care.
"""
