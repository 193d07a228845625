"""Ports as operators name them, checked against the inventory. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from optics import HostPort
from optics.plain import did_you_mean
from orchestrator.inventory.lab import Lab


def no_fibre(word: str, lab: Lab) -> str:
    """Empty if a cable of the inventory ends at the device port `word` (`ocs1:17`); otherwise why
    the name is refused.

    Uncabled ports are refused too: to name one would have no effect, and a spelling mistake looks
    the same.
    """
    known = [str(port) for port in lab.cabled if port.device == word.partition(":")[0]]
    if word in known:
        return ""
    return f"no fibre of the inventory ends at {word}{_meant(word, known)}"


def host_port(word: str, lab: Lab) -> HostPort | None:
    """The port of the lab that `word` names: `gpu03:p1`, `gpu03:1`, `gpu03:p01`."""
    host, _, label = word.partition(":")
    number = re.fullmatch(r"p?(\d{1,3})", label)
    return (
        HostPort(host, int(number[1]))
        if host in lab.hosts and number and int(number[1]) in lab.hosts[host].ports
        else None
    )


def _meant(word: str, known: Iterable[str]) -> str:
    """A suggestion that compares numbers as numbers: for west:01 it is west:1, not the textually
    closer west:101.
    """
    known = sorted(known)
    same = next((name for name in known if _plain(name) == _plain(word)), None)
    return f"; did you mean {same}?" if same else did_you_mean(word, known)


def _plain(name: str) -> str:
    device, _, label = name.partition(":")
    return f"{device}:" + re.sub(
        r"\d+", lambda digits: str(int(digits[0])), label.strip().casefold().removeprefix("p")
    )
