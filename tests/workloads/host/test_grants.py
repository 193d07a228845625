"""The socket by which a rank talks to a packet switch."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

from workloads.host.grants import BUFFER_BYTES, Grant


def test_a_rank_may_send_all_slots_of_a_window_at_once_as_it_may_receive_them() -> None:
    grant = Grant(1, b"token", "127.0.0.1", 9, "", 64, 8192)
    with closing(grant.connect("127.0.0.1")) as link:
        for option, most in ((socket.SO_RCVBUF, "rmem_max"), (socket.SO_SNDBUF, "wmem_max")):
            allowed = min(BUFFER_BYTES, int(Path("/proc/sys/net/core", most).read_text()))
            assert link.getsockopt(socket.SOL_SOCKET, option) == 2 * allowed
