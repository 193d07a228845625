"""TCP's congestion control on a host: of a job's connections, and for two networks that come in
turn.
"""

from extensions.congestion.host.jobs import Congestions
from extensions.congestion.host.networks import Networks

MECHANISMS = (Congestions, Networks)
