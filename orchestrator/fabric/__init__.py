"""The paths light and packets take over the lab, and the smallest safe change between two maps. Pure."""
