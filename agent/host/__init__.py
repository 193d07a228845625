"""The host itself: its links, addresses and sysctls, and the slices it is cut into."""
