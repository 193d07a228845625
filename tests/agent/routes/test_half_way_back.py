"""A committer that dies half way back: the next one still owes the rest. Real messages, a kernel in
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from agent.host.netlink import links
from agent.routes import generations
from agent.routes.generations import Generations
from tests.sim.kernel import Kernel, Nic


class Died(BaseException):
    """SIGKILL."""


def rules(generation: int) -> dict[str, Any]:
    routes = [[f"10.255.0.{host}/32", "10.1.0.9", "opt1", "10.255.0.1"] for host in (2, 3)]
    return {
        "generation": generation,
        "routes": routes,
        "neighbours": [["10.1.0.9", "02:00:00:00:00:07", "opt1"]],
    }


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Generations]:
    """Starts a committer on the same host each time."""
    monkeypatch.setattr(generations, "RUN", str(tmp_path))
    (tmp_path / "generations").mkdir()
    kernel = Kernel({"opt1": Nic("opt1", 11, "02:00:00:00:00:01", carrier=True)})

    def start() -> Generations:
        nl = cast(Any, kernel)
        server = SimpleNamespace(
            nl=nl, interfaces=links(nl), broadcast=lambda event: None, facts={}, cancelled=set()
        )
        server.timer = lambda at_ns, function: 1
        made = Generations(cast(Any, server), nl)
        made.load()
        return made

    return start


def test_who_dies_on_the_way_back_leaves_the_rest_to_the_next(
    started: Callable[[], Generations], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = started()
    for number in (1, 2):
        first.stage(rules(number))
    first.commit(1)
    first.commit(2, revert_after_s=60.0)

    def die(*_: object) -> NoReturn:
        raise Died

    with monkeypatch.context() as death:
        death.setattr(first.rule, "exchange", die)
        with pytest.raises(Died):
            first.revert("nobody confirmed in time")
    second = started()
    assert second.active == 2 and second.pending is not None and second.pending["to"] == 1
    second.revert("nobody confirmed in time")
    assert (started().active, started().pending) == (1, None)
