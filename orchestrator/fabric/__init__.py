"""The paths of light and packets over the lab, and the smallest safe change between two maps.
Pure.
"""
