"""Transports to a device: the only sockets of the drivers."""

from drivers.link.addresses import open_link
from drivers.link.base import Dropped, Link

__all__ = ["Dropped", "Link", "open_link"]
