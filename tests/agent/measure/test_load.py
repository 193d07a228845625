"""Who uses a host's processors: ranks are distinguished from the rest, and a stopped one from one
that waits.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.basics import Failure
from agent.daemon import Server
from agent.jobs.remains import kill_session
from agent.measure import flows, load


def server(*pids: int) -> Server:
    """One whose jobs job-0, job-1, ... have these leaders."""
    known = {f"job-{n}": {"state": "running", "pid": pid} for n, pid in enumerate(pids)}
    state = lambda where: known.get(Path(where).name, {"state": "absent"})  # noqa: E731
    return cast(Server, SimpleNamespace(jobs=SimpleNamespace(state=state)))


def test_a_stopped_rank_is_told_from_one_that_waits_and_both_from_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "VAR", str(tmp_path))
    ranks = [
        subprocess.Popen(
            ["/bin/sh", "-c", "sleep 600 & echo; wait"],
            start_new_session=True,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            rank.stdout.readline()
        os.killpg(ranks[0].pid, signal.SIGSTOP)
        os.waitpid(ranks[0].pid, os.WUNTRACED)
        monkeypatch.setattr(load, "LEAST_CORES", 0.5)
        give_up, states, wanted = time.monotonic() + 60, {}, {"job-0": "T", "job-1": "S"}
        while states != wanted and time.monotonic() < give_up:  # the other one may not sleep yet
            found = load.compared(
                server(*(rank.pid for rank in ranks)),
                ["job-0", "job-1", "job-2"],
                load.Look(),
                load.Look(),
            )
            states = {name: rank["state"] for name, rank in found["ranks"].items()}
        assert states == wanted
        assert found["ranks"]["job-0"]["heartbeat"] == "No such file or directory"
        assert (
            found["cpus"] >= 1
            and found["whole"]
            and not {p["pid"] for p in found["others"]} & {rank.pid for rank in ranks}
        )
    finally:
        for rank in ranks:
            os.killpg(rank.pid, signal.SIGKILL)
            rank.communicate()


def test_a_process_whose_name_is_not_utf8_hides_no_other_and_no_session_outlives_its_end() -> None:
    program = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\xff\\xfe) \\xc3'); print(flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            look = load.Look()
            (name,) = (used[1] for (pid, _), used in look.used.items() if pid == process.pid)
            assert name == "\ufffd\ufffd) \ufffd" and json.dumps(name, ensure_ascii=False).encode()
            for _ in kill_session(process.pid):
                pass
            assert process.wait(20) == -signal.SIGKILL
        finally:
            process.kill()


@pytest.mark.parametrize(
    "request_",
    [{"names": "job"}, {"names": ["../x"]}, {"for_s": 0.0}, {"for_s": 60}, {"names": ["a"] * 65}],
)
def test_a_request_out_of_bounds_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(Failure):
        load.load(server(), request_, lambda _: None)


def test_what_connections_carried_is_counted_by_far_address_and_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, place = "127.0.0.2", "127.0.0.3"
    staged = {7: {"routes": [[f"{place}/32", "10.1.0.2", "eth1", here]]}}
    timers: list[int] = []
    host = SimpleNamespace(
        facts={"lanes": [here]},
        numbers={"eth1": 1},
        generations=SimpleNamespace(active=7, staged=staged),
        timer=lambda at, _: timers.append(at),
    )
    of_host = flows.Flows(cast(Server, host))
    with (
        socket.create_server((place, 0)) as listener,
        socket.create_connection(listener.getsockname(), source_address=(here, 0)) as out,
        listener.accept()[0] as far,
    ):
        first = of_host.look()
        of_host.asked()
        out.sendall(bytes(1 << 16))
        got = 0
        while got < 1 << 16:
            got += len(far.recv(1 << 16))
        give_up = time.monotonic() + 60
        # until it is acknowledged
        while not (found := of_host.since(first)["flows"]) or found[0]["bytes"] < 1 << 16:
            assert time.monotonic() < give_up
        of_host.tested(2.0)
        assert of_host.since(first) == {"flows": [], "past": []}, (
            "test traffic is no fault of a link"
        )
    [flow] = found
    assert (flow["to"], flow["via"], flow["port"], flow["bytes"], flow["again"]) == (
        place,
        "10.1.0.2",
        1,
        1 << 16,
        0,
    )
    assert flow["segments"] >= 1 and flow["seconds"] > 0 and len(timers) == 1
    of_host.asked()
    assert len(timers) == 1, "one series of looks, however many ask"
    of_host.until = 0
    of_host.step()
    assert not of_host.armed and not of_host.looks and len(timers) == 1, "nobody asks any more"
