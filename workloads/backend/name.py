"""The name by which programs ask torch for this back-end."""

NAME = "testbed"
