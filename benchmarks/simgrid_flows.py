"""Times of flows by SimGrid's model of a network, for `second_opinion`; run by a Python that has
SimGrid, with cases on standard input.

A case has links (name: bytes a second) and chains. A chain sends so many bytes from one host to
another over its links, `steps` times; each step but the first waits for one of the chain before it
(`next` names the one that waits). There is no latency, no header, and nothing that a flow back
takes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

CONFIG = (
    "network/model:CM02",
    "network/bandwidth-factor:1",
    "network/latency-factor:1",
    "network/weight-S:0",
    "network/crosstraffic:0",
)


def platform(cases: Sequence[Mapping[str, Any]]) -> str:
    """The cases as a platform file, a zone for each."""
    lines = [
        "<?xml version='1.0'?>",
        '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">',
        '<platform version="4.1">',
        '<zone id="all" routing="None">',
    ]
    for number, case in enumerate(cases):
        ends = dict.fromkeys(chain[end] for chain in case["chains"] for end in ("src", "dst"))
        lines.append(f'<zone id="zone{number}" routing="Full">')
        lines += [f'<host id="{number}:{name}" speed="1Gf"/>' for name in ends]
        lines += [
            f'<link id="{number}:{name}" bandwidth="{rate!r}Bps" latency="0s"/>'
            for name, rate in case["links"].items()
        ]
        for chain in case["chains"]:
            passed = "".join(f'<link_ctn id="{number}:{name}"/>' for name in chain["links"])
            src, dst = (f"{number}:{chain[end]}" for end in ("src", "dst"))
            lines.append(f'<route src="{src}" dst="{dst}" symmetrical="NO">{passed}</route>')
        lines.append("</zone>")
    return "\n".join([*lines, "</zone>", "</platform>"]) + "\n"


def times(cases: Sequence[Mapping[str, Any]]) -> list[float]:
    """The time (s) at which the last chain of each case has sent all."""
    from simgrid import (  # type: ignore[import-not-found,unused-ignore]
        Actor,
        Comm,
        Engine,
        Host,
        Semaphore,
    )

    engine = Engine(["flows", "--log=root.thres:warning", *(f"--cfg={each}" for each in CONFIG)])
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
        file.write(platform(cases))
        file.flush()
        engine.load_platform(file.name)
    found = [0.0] * len(cases)

    def begun(number: int, chain: Mapping[str, Any]) -> Any:
        comm = Comm.sendto_init(*(Host.by_name(f"{number}:{chain[end]}") for end in ("src", "dst")))
        comm.set_payload_size(round(chain["bytes"]))
        return comm.start()

    def at_once(number: int, chains: Sequence[Mapping[str, Any]]) -> None:
        for comm in [begun(number, chain) for chain in chains]:
            comm.wait()
        found[number] = max(found[number], Engine.clock)

    def in_steps(number: int, chain: Mapping[str, Any], arrived: Sequence[Any], own: int) -> None:
        for step in range(chain["steps"]):
            if step:
                arrived[own].acquire()
            begun(number, chain).wait()
            arrived[chain["next"]].release()
        found[number] = max(found[number], Engine.clock)

    for number, case in enumerate(cases):
        chains, arrived = case["chains"], [Semaphore(0) for _ in case["chains"]]
        if alone := [chain for chain in chains if chain["steps"] == 1]:
            host = Host.by_name(f"{number}:{alone[0]['src']}")
            Actor.create(f"{number}", host, at_once, number, alone)
        for own, chain in enumerate(chains):
            if chain["steps"] > 1:
                host = Host.by_name(f"{number}:{chain['src']}")
                Actor.create(f"{number}:{own}", host, in_steps, number, chain, arrived, own)
    engine.run()
    return found


if __name__ == "__main__":
    json.dump(times(json.load(sys.stdin)), sys.stdout)
