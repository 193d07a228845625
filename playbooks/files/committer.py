#!/usr/bin/env python3
"""The resident committer of one host: keeps route generations in the kernel and makes one of them active within microseconds.

It runs on every host as root and needs Python 3.9 and nothing else; this file and the folder `resident` beside it are all of it.
Staging fills a routing table nobody looks at yet; committing changes the one rule that selects the table, so its cost does not
depend on the number of routes. It also watches carrier, reverts by itself when nobody confirms, tells who is at the other end of
each fibre, probes paths, counts bytes and supervises the jobs of this host.

    committer.py start|stop|status          the daemon (a watchdog and its child), idempotent
    committer.py provision < facts.json     sysctls, host0, addresses, links up; prints what changed and what it read back
    committer.py install < facts.json       provision, then start
    committer.py stage < request.json       one request to the daemon; `call` sends any request (a list: one after the other)
    committer.py collect JOB                one job's directory as a compressed archive
    committer.py gpus SECONDS               prints what NVML says of this host's GPUs; ends at once where there are none
    committer.py attach                     hands stdin and stdout to the daemon: the operator's persistent channel

Input may also be an argument instead of stdin: the JSON gzipped, in base64.

Protocol: one JSON object per line. {"id": 1, "op": "hello"} -> {"id": 1, "ok": true, ...} or {"id": 1, "ok": false, "code": ...,
"error": ...}; lines with "event" come unasked. Times are CLOCK_MONOTONIC nanoseconds of this host.
"""

import contextlib
import sys


def attach():
    """Give our stdin and stdout to the daemon and wait until it lets go of them.

    Passing the descriptors (SCM_RIGHTS) instead of copying bytes takes this process out of the path of every message. Nothing
    but built-in modules is imported: an attach takes as long as an interpreter takes to start, 12 ms where the daemon's imports
    would make it 40.
    """
    import _socket
    import posix

    path = posix.environ.get(b"TESTBED_RUN", b"/run/testbed") + b"/committer.sock"
    s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        s.connect(path)
    except OSError as e:
        sys.stderr.write(f"committer: not running ({path.decode()}: {e.strerror})\n")
        return 69  # EX_UNAVAILABLE
    fds = (0).to_bytes(4, sys.byteorder) + (1).to_bytes(4, sys.byteorder)
    s.sendmsg([b'{"op":"adopt"}\n'], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
    with contextlib.suppress(KeyboardInterrupt):
        s.recv(1)
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["attach"]:
        sys.exit(attach())
    from resident.commands import main

    sys.exit(main(sys.argv, __doc__))
