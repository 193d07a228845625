"""Mechanisms that are a folder each: what a plan knows of one, what is done with it, how it is shown, and what runs on hosts."""
