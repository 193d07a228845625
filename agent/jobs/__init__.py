"""Jobs of this host: their processes and files, and the doors through which their ranks are spoken
to.
"""
