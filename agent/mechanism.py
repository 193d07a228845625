"""What one mechanism does on a host. The mechanisms are found by their folders:
extensions/NAME/host/, next to this package.
"""

from __future__ import annotations

import os

from agent.basics import Failure, host_parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import ClassVar

    from agent.shapes import Daemon, Json, Operations


class Mechanism:
    """One for each daemon, made when routes, slots and jobs are there; it takes up what an earlier
    daemon of this boot left.

    OPERATIONS: its own. FENCED: those of them that change something (fence.py). TRIES: what a host
    may lack: its name, what works without it, and what raises Failure or OSError where it is
    missing. controls: what routes may name as `congctl` (ip-route(8)), and what the kernel calls it
    here.
    """

    OPERATIONS: ClassVar[Operations] = {}
    FENCED: frozenset[str] = frozenset()
    TRIES: Sequence[tuple[str, str, Callable[[], object]]] = ()

    def __init__(self, server: Daemon) -> None:
        self.server = server
        self.controls: Mapping[str, str] = {}

    def wish(self, request: Json) -> Json | None:
        """What a `job.start` wishes of it, if anything; asked twice. Raises: Failure - this host
        cannot have it.
        """
        return None

    def begin(self, name: str, wanted: Json) -> object:
        """The job with this name was started a moment ago; wanted: as `wish` returned."""

    def end(self, name: str) -> object:
        """The job has ended, whatever it had."""

    def clear(self) -> object:
        """The routes that jobs run on are cleared."""

    def follow(self) -> object:
        """The kernel's rule selects another generation of routes."""


def found() -> list[type[Mechanism]]:
    """The `MECHANISMS` of every extensions/NAME/host, in the order of the names."""
    import importlib

    modules = [importlib.import_module(part.replace("/", ".")) for part in host_parts()]
    return [kind for module in modules for kind in module.MECHANISMS]


def tried() -> list[Json]:
    """Whether this host can have what mechanisms do: a reply for each of their tries."""
    replies = []
    for what, without, attempt in (each for kind in found() for each in kind.TRIES):
        reply: Json = {"what": what, "without": without}
        try:
            if os.geteuid():
                raise Failure("refused", "not tried, this user is not root: run it as root")
            attempt()
        except (Failure, OSError) as e:
            reply.update(
                ok=False, code=e.code if isinstance(e, Failure) else "failed", error=str(e)
            )
        replies.append(reply)
    return replies
