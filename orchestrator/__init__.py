"""Turn what is wanted into light, routes and running jobs; CONTRIBUTING.md has a map of the rooms."""
