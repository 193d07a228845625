"""The host itself: its links, addresses and sysctls, and the partitions it is cut into."""
