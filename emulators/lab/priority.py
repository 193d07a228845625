"""Who has asked for real-time priority for the ranks of this lab; it ends with his connection, or
when its time is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from emulators.fabric.hosts import Host
from emulators.lab.running import Lab


class RanksPriority:
    """Gives the jobs of all hosts priority for one connection at a time.

    The connection is closed by the kernel whatever becomes of the process that asked, and a host
    takes back by itself what is over its time. Where the lab ends, its hosts do, with all their
    programs.
    """

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._holder: object = None

    def order(self, request: Mapping[str, object], asker: object) -> dict[str, object]:
        """Give it for `for_s` (s) from now on, again to programs started since; 0 takes it back.
        Raises: ValueError, OSError.
        """
        for_s = float(str(request["for_s"]))
        if self._holder not in (None, asker):
            raise ValueError("priority: another measurement on this lab has it")
        if not for_s:
            return {"lost": self._take_back()}
        self._holder = asker
        try:
            users = {name: host.job_user for name, host in self._lab.config.hosts.items()}
            given = {
                host.name: host.order(do="priority", user=users[host.name], for_s=for_s)
                for host in self._running()
            }
        except BaseException:
            self.ended(asker)
            raise
        return {"programs": {name: reply["programs"] for name, reply in given.items()}}

    def ended(self, asker: object) -> None:
        """Take back what was given to a connection that has ended."""
        if self._holder is not None and self._holder is asker:
            self._take_back()

    def _take_back(self) -> dict[str, object]:
        """Take it back from all hosts; return, by host, the programs that had lost it before, and
        why.
        """
        lost = {}
        for host in self._running():
            with suppress(OSError):  # it has just died, with its programs
                if found := host.order(do="no priority")["lost"]:
                    lost[host.name] = found
        self._holder = None
        return lost

    def _running(self) -> Iterator[Host]:
        return (host for host in self._lab.hosts.values() if host.running)
