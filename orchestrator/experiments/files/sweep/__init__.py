"""Campaign files (`testbed.sweep/1`): the trials of a grid or a list of parameters. Pure."""
