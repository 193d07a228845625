"""Functions of packet switches in the inventory, in generated labs and among the faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from emulators.generate.command import main
from emulators.inventory.config import read_config
from emulators.inventory.files import BadInventory
from emulators.lab.control import Control
from emulators.lab.running import Lab, Listeners, build_devices
from optics import BadFile
from orchestrator.cli.lab import functions_text
from orchestrator.experiments.rehearsal.inventory import AccessPaths, _segments
from tests.emulators.lab.test_host_faults import StubFabric, ask
from tests.kit.labs import lab_in

POOL, CACHE = {"slots": 64, "slot_bytes": 8192, "jobs": 2}, {"entries": 1024, "entry_bytes": 1024}


def generated(folder: Path, *kinds: str) -> Path:
    argv = [word for kind in kinds for word in ("--electrical", kind)]
    assert main(["--hosts", "4", "--ports", "1", *argv, "--rack", "2", "--out", str(folder)]) == 0
    return folder


def spoiled(folder: Path, old: str, new: str) -> tuple[str, str]:
    """What both readers say of a generated lab with this text in place of that."""
    path = folder / "fibres.yml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(BadInventory) as theirs:
        read_config(folder)
    with pytest.raises(BadFile) as ours:
        lab_in(folder)
    return str(theirs.value), str(ours.value)


def test_both_readers_find_the_functions_that_were_asked_for_on_ports_of_their_own(
    tmp_path: Path,
) -> None:
    folder = generated(
        tmp_path,
        "ideal",
        "domains:2@50+aggregate",
        "rails:2+cache",
        "dual:2+cache+aggregate",
        "fat-tree+cache",
    )
    config = read_config(folder)
    lab = lab_in(folder)
    read = {
        s.name: (dict(s.functions), s.address.rpartition(":")[2]) for s in lab.segments.values()
    }
    assert read == {s.name: (dict(s.functions), str(s.control_port or "")) for s in config.segments}
    ports = [s.control_port for s in config.segments if s.control_port]
    assert ports == list(range(27_001, 27_008))
    assert [sorted(functions) for functions, _ in read.values()] == [
        [], ["aggregate"], ["aggregate"], ["cache"], ["cache"], ["aggregate", "cache"], ["aggregate", "cache"], ["cache"],
    ]  # fmt: skip
    assert read["domain1"][0] == {"aggregate": POOL} and read["rail1"][0] == {"cache": CACHE}


@pytest.mark.parametrize(
    ("old", "new", "emulator", "program"),
    [
        ("slots: 64", "slots: 0", "slots 0: wanted 1 to 4096", "functions.aggregate.slots"),
        ("slot_bytes: 8192", "slot_bytes: 66", "wanted 64 to 8896, a multiple of 4", "slot_bytes"),
        ("jobs: 2", "jobs: 65", "jobs 65: wanted 1 to 64", "jobs"),
        ("jobs: 2", "jobs: yes", "jobs True", "jobs"),
        (", jobs: 2", "", "function aggregate: wanted slots, slot_bytes, jobs", "jobs"),
        (
            "{slots: 64, slot_bytes: 8192, jobs: 2}",
            "2",
            "function aggregate: wanted slots",
            "aggregate",
        ),
        ("aggregate:", "average:", "no function average; there are aggregate, cache", "average"),
        (
            "address: 127.0.0.1:27001, ",
            "",
            "emulated functions are controlled at 127.0.0.1:PORT",
            "they need address",
        ),
        ("27001", "0", "emulated functions are controlled at", "address"),
        ("27001", "65536", "emulated functions are controlled at", "port 65536: wanted 1 to 65535"),
    ],
)
def test_functions_that_cannot_be_are_refused_by_both_readers(
    tmp_path: Path, old: str, new: str, emulator: str, program: str
) -> None:
    theirs, ours = spoiled(generated(tmp_path, "ideal+aggregate"), old, new)
    assert emulator in theirs and program in ours


def test_an_address_without_functions_is_refused(tmp_path: Path) -> None:
    folder = generated(tmp_path, "ideal+cache")
    path = folder / "fibres.yml"
    path.write_text(path.read_text().partition(", functions:")[0] + "}\n")
    with pytest.raises(BadFile, match="of the control of functions: there are none"):
        lab_in(folder)


def test_packets_that_the_labs_fibres_do_not_carry_are_refused(tmp_path: Path) -> None:
    folder = generated(tmp_path, "ideal+aggregate")
    path = folder / "emulator.yml"
    path.write_text(path.read_text().replace("mtu: 9000", "mtu: 1500"))
    with pytest.raises(
        BadInventory, match="slot_bytes 8192 and 60 of headers do not fit the MTU, 1500"
    ):
        read_config(folder)


def test_a_rehearsals_twin_has_the_functions_on_ports_of_its_own(tmp_path: Path) -> None:
    folder = generated(tmp_path, "ideal+aggregate", "domains:2+cache", "ideal")
    lab = lab_in(folder)
    paths = AccessPaths({}, {}, tmp_path, {"ideal": 20_001, "domain1": 20_002, "domain2": 20_003})
    found = {segment["name"]: segment for segment in _segments(lab, paths)}
    assert {name: segment.get("address") for name, segment in found.items()} == {
        "ideal": "127.0.0.1:20001", "domain1": "127.0.0.1:20002", "domain2": "127.0.0.1:20003", "ideal-2": None,
    }  # fmt: skip
    assert {name: segment.get("functions") for name, segment in found.items()} == {
        name: segment.functions or None for name, segment in lab.segments.items()
    }


def test_a_function_that_nobody_knows_is_not_generated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--hosts", "2", "--electrical", "ideal+sum", "--out", str(tmp_path / "lab")])
    assert "no function 'sum': wanted +aggregate or +cache" in capsys.readouterr().err


class StubFunctions:
    """The functions of a segment, which note what is asked of them."""

    def __init__(self) -> None:
        self.pid, self.asked = 4711, list[dict[str, object]]()

    def order(self, **texts: object) -> dict[str, object]:
        if not self.pid:
            raise OSError("segment ideal: the process of its functions has ended")
        self.asked.append(texts)
        return {"functions": {}}


@pytest.fixture
async def lab(tmp_path: Path) -> Any:
    config = read_config(generated(tmp_path, "ideal+aggregate", "ideal"))
    devices, fabric, functions = (
        build_devices(config),
        cast("Any", StubFabric(config)),
        StubFunctions(),
    )
    fabric.functions = {"ideal": functions}
    fabric.carriers = lambda: dict.fromkeys(config_ports(config), True)
    for host in fabric.hosts.values():
        host.port_open, host.machine_pid = True, 1
    yield (
        Control(
            Lab(
                config,
                devices,
                Listeners(dict.fromkeys(devices), {}, cast("Any", None), None, 1),
                fabric,
            )
        ),
        functions,
    )


def config_ports(config: Any) -> Iterator[tuple[str, int]]:
    return ((name, number) for name, host in config.hosts.items() for number in host.interfaces)


async def test_faults_of_functions_are_done_and_undone(lab: tuple[Control, StubFunctions]) -> None:
    control, functions = lab
    number = ask(control, "faults.add", host="ideal", kind="function-loss", percent=10)["number"]
    more = ask(control, "faults.add", host="ideal", kind="function-loss", percent=50)["number"]
    assert ask(control, "faults.add", host="ideal", kind="function-restart")["ok"]
    for each in (number, more):
        assert ask(control, "faults.remove", host="ideal", number=each)["ok"]
    assert functions.asked == [
        {"do": "loss", "share": pytest.approx(0.1)}, {"do": "loss", "share": pytest.approx(0.55)}, {"do": "restart"},
        {"do": "loss", "share": 0.5}, {"do": "loss", "share": 0.0},
    ]  # fmt: skip


@pytest.mark.parametrize("place", ["ideal-2", "gpu01", "all", "nowhere"])
async def test_a_segment_without_functions_has_none_of_their_faults(
    lab: tuple[Control, StubFunctions], place: str
) -> None:
    reply = ask(lab[0], "faults.add", host=place, kind="function-loss", percent=1)
    assert (
        reply["error"] == f"fault function-loss: no segment {place} with functions; there are ideal"
    )


async def test_functions_whose_process_ended_are_told_and_keep_nobody_from_the_rest(
    lab: tuple[Control, StubFunctions],
) -> None:
    control, functions = lab
    assert ask(control, "status")["functions"] == {
        "ideal": {"running": True, "pid": functions.pid, "functions": {}}
    }
    functions.pid = 0
    assert (
        ask(control, "status")["functions"]["ideal"]["error"]
        == "segment ideal: the process of its functions has ended"
    )
    assert not ask(control, "faults.add", host="ideal", kind="function-restart")["ok"]
    assert ask(control, "faults.add", host="gpu01", kind="cpu-hog")["ok"]


def test_lab_status_says_who_uses_the_functions() -> None:
    about = {
        "running": True,
        "functions": {"aggregate": POOL, "cache": CACHE},
        "allocations": [],
        "loss": 0.0,
    }
    at = {"address": "10.253.0.1", "port": 7470}
    assert functions_text("ideal", about | at) == (
        "  ideal",
        "aggregate, cache: free",
        "10.253.0.1:7470",
    )
    used = {"allocations": [{"job": "b"}, {"job": "a"}, {"job": "b"}], "loss": 0.01}
    assert (
        functions_text("ideal", about | at | used)[1]
        == "aggregate, cache: used by a, b, 1 % of their packets lost"
    )
    ended = {"running": False, "error": "its process has ended"}
    assert functions_text("ideal", ended) == ("  ideal", "functions: its process has ended", "")
