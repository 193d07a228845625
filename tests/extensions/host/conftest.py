"""The host that agents' parts of mechanisms run on."""

from tests.agent.conftest import host, peer, shared_host, spaces

__all__ = ["host", "peer", "shared_host", "spaces"]
