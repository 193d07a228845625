"""Jobs of this host: their processes and files, and the interfaces through which their ranks are
spoken to.
"""
