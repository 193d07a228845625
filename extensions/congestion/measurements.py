"""Nothing is recorded of a congestion control itself."""

MEASUREMENTS = ()
