"""RDMA devices of running emulated hosts: always there for who reads them, whatever happens to
interfaces.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator

import pytest

from emulators.fabric.rdma import NO_GID
from tests.emulators.fabric.emulated import EmulatedLab, eventually, write_inventory

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def rdma(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    inventory = write_inventory(tmp_path_factory.mktemp("lab"), hosts=2)
    with (inventory / "emulator.yml").open("a") as file:
        file.write("rdma: true\n")
    running = EmulatedLab(inventory)
    yield running
    assert running.stop() == 0, running.log.read_text()


def seen(lab: EmulatedLab, host: str, path: str) -> str:
    """A file of a host as its own programs read it: links lead elsewhere outside."""
    done = subprocess.run(
        ["nsenter", "-t", str(lab.host_pid(host)), "-m", "cat", path],
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_a_device_is_there_for_who_reads_while_its_gids_move(rdma: EmulatedLab) -> None:
    look = 'for n in $(seq 3000); do [ -e "$0/state" ] && [ -e "$0/gids/15" ] || echo gone; done'
    port = "/sys/class/infiniband/mlx5_1/ports/1"
    pid = str(rdma.host_pid("gpu01"))
    found: list[str] = []

    def read() -> None:
        argv = ["nsenter", "-t", pid, "-m", "bash", "-c", look, port]
        found.append(subprocess.run(argv, capture_output=True, text=True).stdout)

    reader = threading.Thread(target=read)
    reader.start()
    while reader.is_alive():
        added = rdma.ask("faults.add", host="gpu01", kind="gids-moved", port=2)
        assert added["ok"], added
        assert rdma.ask("faults.remove", host="gpu01", number=added["number"])["ok"]
    reader.join()
    assert found == [""]


def test_who_is_on_the_way_to_a_file_gets_there_while_gids_move(rdma: EmulatedLab) -> None:
    """A reader may follow the link, wait for a processor, and go on."""
    device = "/sys/class/infiniband/mlx5_1"
    enter = ["nsenter", "-t", str(rdma.host_pid("gpu01")), "-m"]
    shown = subprocess.run([*enter, "readlink", device], capture_output=True, text=True).stdout
    added = rdma.ask("faults.add", host="gpu01", kind="gids-moved", port=2)
    assert added["ok"], added
    assert seen(rdma, "gpu01", f"{shown.strip()}/ports/1/gids/15")
    assert seen(rdma, "gpu01", f"{device}/ports/1/gids/1") == NO_GID + "\n"
    assert rdma.ask("faults.remove", host="gpu01", number=added["number"])["ok"]


def test_a_host_outlives_an_interface_and_shows_its_other_ports(rdma: EmulatedLab) -> None:
    pid = rdma.host_pid("gpu01")
    subprocess.run(["nsenter", "-t", str(pid), "-n", "ip", "link", "del", "opt1"], check=True)
    added = rdma.ask("faults.add", host="gpu01", kind="gids-moved", port=2)
    assert added["ok"], added
    types = "/sys/class/infiniband/mlx5_1/ports/1/gid_attrs/types/3"
    assert eventually(lambda: seen(rdma, "gpu01", types) == "RoCE v2\n")
    assert rdma.host_pid("gpu01") == pid


def test_a_host_that_is_stopped_takes_no_orders(rdma: EmulatedLab) -> None:
    assert rdma.ask("faults.add", host="gpu02", kind="host-hang")["ok"]
    answer = rdma.ask("faults.add", host="gpu02", kind="kill-rank", rank=0)
    assert not answer["ok"] and "host gpu02 is stopped" in str(answer), answer
