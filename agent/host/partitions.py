"""Partitions of a host: each has an agent of its own (TESTBED_RUN and TESTBED_VAR below
`partitions/NAME`), which routes its lanes alone.

This module is what those agents share in one network namespace: which packets each one's rules
select, whose tables are whose, neighbours that several use. A host without partitions uses `Whole`
and nothing else of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct

from agent.basics import RUN, VAR, read_json, refused
from agent.host.netlink import (
    CREATE,
    DELRULE,
    EXCL,
    GETRULE,
    NEWRULE,
    PROTOCOL,
    RULE_PREF,
    TABLE_BASE,
    TABLES,
    U32,
    attr,
    attrs,
    must,
    rule_message,
    rule_tables,
    u32,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.host.netlink import Rtnl
    from agent.shapes import Message

MOST = 8
"""Partitions of a host: as many preferences lie between the rule of a whole host and the fence."""
LANE_BITS = 24
"""The addresses of a lane have these bits in common; a partition routes all packets between them,
also those that pass through.
"""


class Whole:
    """The rule of a host that is used whole: all packets, one table."""

    base, tables = TABLE_BASE, TABLES

    def active(self, nl: Rtnl, known: set[int]) -> int | None:
        """The table that is selected, after repairing what an exchange that was cut off left; None
        if none is.
        """
        found = rule_tables(nl)
        for table in found[:-1]:  # died between the two halves of a flip: keep the newer rule
            nl.send([(DELRULE, 0, rule_message(table))])
        return found[-1] if found else None

    def exchange(
        self, nl: Rtnl, table: Callable[[int], int], old: int | None, new: int | None
    ) -> None:
        """Select the table of a generation in place of another's. Adding before deleting: at no
        instant is there no rule.

        Raises: Failure.
        """
        messages: list[Message] = []
        if new is not None:
            messages.append((NEWRULE, CREATE | EXCL, rule_message(table(new))))
        if old is not None:
            messages.append((DELRULE, 0, rule_message(table(old))))
        must(nl.send(messages), lambda i: "rule of generation %s" % (new if i == 0 else old))

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """While neighbours are added or dropped, or rules exchanged: only one agent of the host
        does.
        """
        yield

    def neighbours_of_others(self) -> set[tuple[str, str]]:
        """(address, interface) of every neighbour that another agent of this host has staged."""
        return set()


def others(mine: str) -> Iterator[str]:
    """The run folders of all agents of this host but the one with `mine`."""
    top = top_of(mine)
    names = sorted(os.listdir(top + "/partitions")) if os.path.isdir(top + "/partitions") else []
    for folder in (top, *(f"{top}/partitions/{name}" for name in names)):
        if folder != mine and os.path.isdir(folder + "/generations"):
            yield folder


def top_of(folder: str) -> str:
    """The folder of the host's agent, given that of any agent of the host."""
    head, name = os.path.split(os.path.dirname(folder))
    return head if name == "partitions" else folder


class Neighbourly(Whole):
    """The rule of a host that has partitions, while it is used whole: it does not stand beside
    those of partitions.
    """

    def exchange(
        self, nl: Rtnl, table: Callable[[int], int], old: int | None, new: int | None
    ) -> None:
        with self.shared():  # nobody begins to use it in partitions between the look and the rule
            if new is not None and (
                used := sorted(
                    {s[3] for s in selectors(nl) if RULE_PREF < s[3] <= RULE_PREF + MOST}
                )
            ):
                raise refused(
                    f"this host is used in partitions (rules with preference {', '.join(map(str, used))}); take their plans down first"
                )
            super().exchange(nl, table, old, new)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        os.makedirs(top_of(RUN) + "/partitions", mode=0o700, exist_ok=True)
        gate = os.open(
            top_of(RUN) + "/partitions/neighbours.lock",
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
            0o600,
        )
        try:
            fcntl.flock(gate, fcntl.LOCK_EX)  # held for milliseconds: an agent that dies lets go
            yield
        finally:
            os.close(gate)

    def neighbours_of_others(self) -> set[tuple[str, str]]:
        found: set[tuple[str, str]] = set()
        for folder in others(RUN):
            for name in os.listdir(folder + "/generations"):
                request = (
                    read_json(f"{folder}/generations/{name}") if name.endswith(".json") else None
                )
                found.update((n[0], n[2]) for n in (request or {}).get("neighbours", ()))
        return found


Selector = tuple[str, str, int, int]
"""A rule: source and destination prefixes (empty: any), table, preference."""


def selectors(nl: Rtnl) -> list[Selector]:
    """Every rule that looks up a table, first match first."""
    found = []
    for data in nl.dump(GETRULE, struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)):
        a = attrs(data, 12)
        ends = [
            f"{socket.inet_ntoa(a.get(kind, bytes(4)))}/{bits}" if bits else ""
            for kind, bits in ((2, data[2]), (1, data[1]))
        ]
        if data[7] == 1 and 6 in a:
            found.append(
                (ends[0], ends[1], U32.unpack(a.get(15, u32(data[4])))[0], U32.unpack(a[6])[0])
            )
    return found


def selector_message(selector: Selector) -> bytes:
    source, destination, table, preference = selector
    body, lengths = b"", []
    for kind, prefix in ((1, destination), (2, source)):
        address, _, bits = prefix.partition("/")
        lengths.append(int(bits))
        body += attr(kind, socket.inet_aton(address))
    head = struct.pack("=BBBBBBBBI", socket.AF_INET, lengths[0], lengths[1], 0, 0, 0, 0, 1, 0)
    return (
        head + body + attr(6, u32(preference)) + attr(15, u32(table)) + attr(21, bytes([PROTOCOL]))
    )


class Partition(Neighbourly):
    """The rules of one partition: for each of its lanes, packets of the lane, and those of sockets
    that have no source address yet.
    """

    def __init__(self, index: int, lanes: list[str]) -> None:
        """index: which partition of the host this is; lanes: the host's addresses of its lanes."""
        self.base, self.preference = TABLE_BASE + TABLES * (1 + index), RULE_PREF + 1 + index
        self.prefixes = [lane_prefix(address) for address in lanes]

    def wanted(self, table: int) -> list[Selector]:
        return [(s, p, table, self.preference) for p in self.prefixes for s in (p, "0.0.0.0/32")]

    def active(self, nl: Rtnl, known: set[int]) -> int | None:
        """As `Whole.active`. Several tables: the newest one of `known` whose rules are all there
        stays.
        """
        found = [s for s in selectors(nl) if s[3] == self.preference]
        tables = list(dict.fromkeys(s[2] for s in found))
        whole = [t for t in tables if t in known and set(self.wanted(t)) <= set(found)]
        kept = whole[-1] if whole else None
        stale = [s for s in found if kept is None or s not in self.wanted(kept)]
        nl.send([(DELRULE, 0, selector_message(s)) for s in stale])
        return kept

    def exchange(
        self, nl: Rtnl, table: Callable[[int], int], old: int | None, new: int | None
    ) -> None:
        with self.shared():  # nobody begins to use the host whole between the look and the rules
            if new is not None and rule_tables(nl):
                raise refused(
                    f"this host is used whole (a rule with preference {RULE_PREF}); take that plan down first"
                )
            self._exchange(nl, table, old, new)

    def _exchange(
        self, nl: Rtnl, table: Callable[[int], int], old: int | None, new: int | None
    ) -> None:
        added = [] if new is None else [selector_message(s) for s in self.wanted(table(new))]
        removed = [] if old is None else [selector_message(s) for s in self.wanted(table(old))]
        failed = nl.send([(NEWRULE, CREATE | EXCL, body) for body in added])
        if failed:  # lanes of one partition never go by different generations
            nl.send([(DELRULE, 0, body) for i, body in enumerate(added) if i not in failed])
        must(failed, lambda i: f"rules of generation {new}")
        must(
            nl.send([(DELRULE, 0, body) for body in removed]),
            lambda i: f"rules of generation {old}",
        )


def lane_prefix(address: str) -> str:
    """The prefix that the addresses of one lane have in common, of all hosts.

    >>> lane_prefix("10.255.2.7")
    '10.255.2.0/24'
    """
    return "{}.0/{}".format(address.rpartition(".")[0], LANE_BITS)


def chosen() -> Whole:
    """What this agent's rules select, by its facts."""
    facts = read_json(VAR + "/provision.json") or {}
    mine = facts.get("partition")
    if mine:
        return Partition(mine["index"], facts["lanes"])
    return Neighbourly() if facts.get("partitions") else Whole()
