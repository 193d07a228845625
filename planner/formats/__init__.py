"""Designs and traffic as files of other programs, and as pictures."""
