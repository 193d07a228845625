"""How fast the TL1 codec of the drivers cuts the port dump of a 320-port switch into rows: whole,
in 1500-byte and 1-byte pieces.

The limit holds for large pieces (the whole dump, 1500 bytes), whichever is slower. A dump ten times
as long may take at most twelve times as long, however it comes. For comparison: the same text
through `str.splitlines`, and every row read by its keys.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import undisturbed, verdict
from drivers.wire import tl1

LIMIT_MB_S = 20.0
LIMIT_GROWTH = 12.0
ROUNDS = 15
PORTS = 320
DARK = (
    "WX,NONE,NONE:INAS=OOS-NP,INOS=OOS,INOC=OK,INRS=NPR,OUTAS=OOS-NP,OUTOS=OOS,OUTOC=OK,OUTRS=NPR"
)
LIT = "WX,TRANSIT,TRANSIT:INAS=IS,INOS=IS,INOC=OK,INRS=NPR,OUTAS=IS,OUTOS=IS,OUTOC=OK,OUTRS=NPR"


def dump(ports: int) -> bytes:
    """The answer to RTRV-PORT of a Calient S-series switch, its rows as captured, in one block."""
    labels = (f"{1 + n // 64}.{1 + n // 8 % 8}.{1 + n % 8}" for n in range(ports))
    rows = "".join(
        f'   "{label}:{LIT if n % 5 == 0 else DARK}"\r\n' for n, label in enumerate(labels)
    )
    return f"\r\n\n   CALIENT01TS 16-11-07 11:10:16\r\nM  7 COMPLD\r\n{rows};".encode()


def parse(data: bytes, piece: int) -> tuple[str, ...]:
    """Feed `data` in pieces of so many bytes; return the rows of the one answer in it."""
    parser = tl1.Parser()
    found = [
        message
        for at in range(0, len(data), piece)
        for message in parser.feed(data[at : at + piece])
    ]
    (reply,) = found
    assert isinstance(reply, tl1.Reply) and reply.completed
    return reply.rows


def seconds(*works: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Median time (s) of each; they take turns, so that a busy moment hits all of them; one
    unmeasured run before.
    """
    times: list[list[float]] = [[] for _ in works]
    for counted in range(-1, rounds):
        for work, found in zip(works, times, strict=True):
            began = time.perf_counter()
            work()
            if counted >= 0:
                found.append(time.perf_counter() - began)
    return [statistics.median(found) for found in times]


def main() -> int:
    undisturbed()
    small, large = dump(PORTS), dump(10 * PORTS)
    assert len(parse(small, len(small))) == PORTS and len(parse(large, 1)) == 10 * PORTS
    rates: dict[str, float] = {}
    growths: dict[str, float] = {}
    for name, piece, again in (("whole", len(large), 10), ("1500 B", 1500, 10), ("1 B", 1, 1)):

        def repeated(data: bytes, size: int = piece, times: int = again) -> None:
            for _ in range(times):
                parse(data, size)

        one, ten = seconds(
            partial(repeated, small), partial(repeated, large), rounds=ROUNDS if piece > 1 else 5
        )
        rates[name], growths[name] = again * len(small) / one / 1e6, ten / one
        took_ms = one / again * 1e3
        print(
            f"{name:>7} pieces  {rates[name]:8.1f} MB/s   {took_ms:7.3f} ms a dump   10 x the dump: {growths[name]:5.2f} x the time"
        )
    rows = parse(small, len(small))
    text = small.decode("latin-1")
    split_s, keyed_s = seconds(
        lambda: [line.strip() for line in text.splitlines()],
        lambda: [tl1.parse_row(row) for row in rows],
    )
    peer, keyed = len(small) / split_s / 1e6, len(small) / keyed_s / 1e6
    print(f"splitlines {peer:17.1f} MB/s   rows by key {keyed:.1f} MB/s")
    return verdict(
        "tl1_parse",
        min(rates["whole"], rates["1500 B"]),
        "MB/s",
        LIMIT_MB_S,
        "at least",
        also=max(growths.values()) <= LIMIT_GROWTH,
        rate_1_byte_mb_s=round(rates["1 B"], 2),
        growth_10x=round(max(growths.values()), 2),
        growth_limit=LIMIT_GROWTH,
        peer_splitlines_mb_s=round(peer, 1),
        rows_by_key_mb_s=round(keyed, 1),
    )


if __name__ == "__main__":
    sys.exit(main())
