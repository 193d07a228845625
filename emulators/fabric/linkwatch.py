"""Have the kernel announce all changes of carrier now, however many there are.

It announces them from one queue for the whole machine (net/core/link_watch.c). A run of the queue
takes 100 devices, or 200 when an urgent change called for it; what is left waits for the next run,
up to a second later: with 96 hosts, the last links of a move came up seconds after their light. But
every urgent change calls for a run at once, and the queue is first in, first out. So one change is
put at the end of the queue as a marker, and urgent ones follow it until the marker is announced.
"""

from __future__ import annotations

import os
import select
import time
from itertools import cycle

from emulators.fabric import linux
from emulators.fabric.netlink import End, LinkWatch, Netlink, link_state, veth

# (near, far) indexes of two veth pairs: switching near changes the carrier of far
MARKER, SPUR = (1000, 1001), (1002, 1003)
SPUR_EVERY_S = 0.001
DEADLINE_S = 10.0


class Linkwatch:
    """The marker and the spur, in a network namespace of their own."""

    def __init__(self) -> None:
        net = linux.new_network()
        with linux.inside(net):
            self._netlink, self._heard = Netlink(), LinkWatch()
        os.close(net)
        self._netlink.send(
            [veth(End(near, f"near{near}"), End(far, f"far{far}")) for near, far in (MARKER, SPUR)]
        )
        self._netlink.send([link_state(index, True) for index in (*MARKER, *SPUR)])
        self._states = cycle((False, True)), cycle((False, True))

    def close(self) -> None:
        self._netlink.close()
        self._heard.close()

    def flush(self, deadline_s: float = DEADLINE_S) -> bool:
        """Return once every change of carrier made before this call is announced; False: they are
        not after `deadline_s`.

        Not for two threads at once.
        """
        marker, spur = self._states
        poll = select.poll()
        poll.register(self._heard, select.POLLIN)
        list(self._heard.read())
        until = time.monotonic() + deadline_s
        self._netlink.send([link_state(MARKER[0], next(marker))])
        while all(index != MARKER[1] for index, _ in self._heard.read()):
            if time.monotonic() > until:
                return False
            if not poll.poll(SPUR_EVERY_S * 1000):
                self._netlink.send([link_state(SPUR[0], next(spur))])
        return True
