#!/usr/bin/env python3
"""The agent of one host: keeps route generations in the kernel and makes one of them active within
microseconds.

It runs on every host as root and needs Python 3.9 and nothing else. Staging fills a routing table
that no rule selects yet; committing changes the one rule that selects the table, so its cost does
not depend on the number of routes. The agent also watches carrier, reverts by itself when no
confirmation comes, identifies the far end of each fibre, probes paths, counts bytes and supervises
the jobs of this host.

    python3 -S -E agent/__main__.py COMMAND

    start|stop|status          the daemon (a watchdog and its child), idempotent
    provision < facts.json     sysctls, host0, addresses, links up; prints what changed and what it read back
    install < facts.json       provision, then start
    check < facts.json         what install would change; changes nothing
    remove                     ends the daemon, puts back what provisioning changed, and removes all files
    call < request.json        one request to the daemon; of a list, one after the other
    collect JOB                one job's directory as a compressed archive
    try                        whether this host can have what mechanisms do: each tries it for a moment
    rdma                       what the kernel shows of RDMA devices: ports, GIDs, and the interfaces of this host
    gpus SECONDS               prints what NVML says of this host's GPUs; ends at once where there are none
    attach                     hands stdin and stdout to the daemon: the operator's persistent channel

Input may also be an argument instead of stdin: the JSON gzipped, in base64. The wire format is in
docs/reference/agent.md.
"""

import sys


def attach() -> int:
    """Give our stdin and stdout to the daemon and wait until it closes the connection.

    Passing the descriptors (SCM_RIGHTS) instead of copying bytes takes this process out of the path
    of every message. Only built-in modules are imported: an attach takes as long as an interpreter
    takes to start, 12 ms; with the imports of the daemon it would take 40.
    """
    import _socket
    import posix

    path = posix.environ.get(b"TESTBED_RUN", b"/run/testbed") + b"/committer.sock"
    s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        s.connect(path)
    except OSError as e:
        sys.stderr.write(f"agent: not running ({path.decode()}: {e.strerror})\n")
        return 69  # EX_UNAVAILABLE
    fds = (0).to_bytes(4, sys.byteorder) + (1).to_bytes(4, sys.byteorder)
    s.sendmsg([b'{"op":"adopt"}\n'], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
    try:  # contextlib is no built-in module
        s.recv(1)
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["attach"]:
        sys.exit(attach())
    import os

    # this package's parent, not its folder
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from agent.commands import main

    sys.exit(main(sys.argv, __doc__))
