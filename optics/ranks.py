"""Names of a job's ranks (`gpu01` is the only rank of its host, `gpu01/1` the second of several),
and their exit codes. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from optics import HostName

RankName: TypeAlias = str
"""A host, or a host and the number of the rank there (LOCAL_RANK). Of hosts, only the name of a
partition has a slash: `gpu01/a`.
"""

LOST_PEER = 75
"""Exit code of a rank that lost a peer (EX_TEMPFAIL of sysexits.h; `workloads/programs/program.py`
has its own): it is a victim.
"""

_RANK = re.compile(r"([^/]+(?:/[a-z][a-z0-9-]*)?)(?:/(0|[1-9][0-9]{0,3}))?")


def parsed(rank: RankName) -> tuple[HostName, int | None] | None:
    """Host and number of a rank; the number is None for a host alone. None: it is no rank's name.

    >>> parsed("gpu01/1"), parsed("gpu01"), parsed("gpu01/01"), parsed("gpu01/a/1")
    (('gpu01', 1), ('gpu01', None), None, ('gpu01/a', 1))
    """
    found = _RANK.fullmatch(rank)
    return None if found is None else (found[1], None if found[2] is None else int(found[2]))


def host_of_rank(rank: RankName) -> HostName:
    """
    >>> host_of_rank("gpu01/1"), host_of_rank("gpu01"), host_of_rank("gpu01/a"), host_of_rank("gpu01/a/1")
    ('gpu01', 'gpu01', 'gpu01/a', 'gpu01/a')
    """
    host, slash, last = rank.rpartition("/")
    return host if slash and last.isdigit() else rank


def numbered(rank: RankName) -> bool:
    """Whether the rank is one of several of its host.

    >>> numbered("gpu01/1"), numbered("gpu01/a"), numbered("gpu01")
    (True, False, False)
    """
    return host_of_rank(rank) != rank


def signal_of(code: int | None) -> int | None:
    """The signal, 1 to 64, that ended the program of a rank with this exit code, which is a
    shell's; None if none did.

    >>> signal_of(137), signal_of(75), signal_of(193), signal_of(None)
    (9, None, None, None)
    """
    return code - 128 if code is not None and 128 < code <= 192 else None


def local_rank(rank: RankName) -> int:
    """The number of the rank on its host.

    >>> local_rank("gpu01/1"), local_rank("gpu01")
    (1, 0)
    """
    return int(rank.rpartition("/")[2]) if numbered(rank) else 0


def hosts_of(ranks: Iterable[RankName]) -> tuple[HostName, ...]:
    """The hosts of these ranks, each once, in order of its first rank.

    >>> hosts_of(["gpu02/0", "gpu02/1", "gpu01"])
    ('gpu02', 'gpu01')
    """
    return tuple(dict.fromkeys(map(host_of_rank, ranks)))


def by_host(ranks: Iterable[RankName]) -> dict[HostName, tuple[RankName, ...]]:
    """The ranks of each host, in order.

    >>> by_host(["gpu02/0", "gpu02/1", "gpu01"])
    {'gpu02': ('gpu02/0', 'gpu02/1'), 'gpu01': ('gpu01',)}
    """
    found: dict[HostName, tuple[RankName, ...]] = {}
    for rank in ranks:
        found[host_of_rank(rank)] = (*found.get(host_of_rank(rank), ()), rank)
    return found


def ranks_on(host: HostName, count: int) -> tuple[RankName, ...]:
    """The names of a host's `count` ranks.

    >>> ranks_on("gpu01", 1), ranks_on("gpu01", 2)
    (('gpu01',), ('gpu01/0', 'gpu01/1'))
    """
    return (host,) if count == 1 else tuple(f"{host}/{local}" for local in range(count))
