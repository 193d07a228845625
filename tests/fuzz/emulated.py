"""Targets: the emulated devices' side. Any bytes a client sends are answered or not; nothing
breaks, nothing grows.
"""

from __future__ import annotations

import inspect
from functools import cache

from emulators.devices.families import _BUILT_IN, device_from_config, family
from emulators.devices.transports.base import RunsOnce
from tests.fuzz.targets import LONGEST, pieces, target

_STEP_S = 0.02
_MOST_OUT = 1 << 22


@cache
def _overrides(driver: str) -> dict[str, object]:
    kind = family(driver)
    known = inspect.signature(kind.dialect).parameters
    quick = {
        "row_delay_s": 0.0,
        "epoch_s": 0.0,
        "size": "3x3" if kind.size == "16x16" else kind.size,
    }
    return {key: value for key, value in quick.items() if key in known or key == "size"}


def _talk(driver: str, data: bytes) -> None:
    _, dialect = device_from_config("ocs1", driver, _overrides(driver))
    dialect.transport = family(driver).schemes[0]
    now, reported = 0.0, 0
    session = dialect.open(now)
    assert session is not None
    if dialect.logs_in and not data.startswith(b"!"):
        session.user = "admin"
    for part in pieces(data.removeprefix(b"!")):
        now += _STEP_S
        if part.startswith(b"\x05") and isinstance(dialect, RunsOnce):
            dialect.run_once(session, part[1:].decode("utf-8", "replace"), now)
        elif part:  # a server hands on only what there is
            dialect.receive(session, part, now)
        dialect.tick(now)
        out = dialect.drain()
        assert all(data is None or isinstance(data, bytes) for _, _, data in out)
        reported += sum(len(data or b"") for _, _, data in out)
        event = dialect.next_event(now)
        assert event is None or isinstance(event, float | int)
    dialect.tick(now + 60.0)
    assert reported < _MOST_OUT and len(session.buffer) <= max(dialect.longest, LONGEST)
    dialect.close(session)


def _enter(driver: str) -> None:
    @target(f"emulated-{driver}")
    def fuzz(data: bytes) -> None:
        _talk(driver, data)


for _driver in sorted(_BUILT_IN):
    _enter(_driver)
