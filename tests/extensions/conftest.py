"""The lab that plans with attachments are read for, and the hosts that their parts of the agent run
on.
"""

from tests.agent.conftest import host, peer, shared_host, spaces
from tests.plan.conftest import lab

__all__ = ["host", "lab", "peer", "shared_host", "spaces"]
