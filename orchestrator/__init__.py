"""Turns plans into light, routes and running jobs; CONTRIBUTING.md has a map of the packages."""
