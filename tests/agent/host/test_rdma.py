"""The agent reads RDMA devices from /sys/class: what is there, and nothing worse from what should
not be there.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.host.rdma import MOST_DEVICES, MOST_GIDS, rdma
from tests.agent.space import Space, facts
from tests.kit.rdma_tree import NO_GID, V1, V2, device, gid_of, interface, table

ADDRESS = "10.100.1.1"


def test_devices_are_read_with_state_interface_and_the_gids_in_use(tmp_path: Path) -> None:
    interface(tmp_path, "ens1f0np0", "0c:42:a1:00:00:01")
    interface(tmp_path, "ens1f1np1", "0c:42:a1:00:00:02", carrier="0")
    device(tmp_path, "mlx5_0", "ens1f0np0", table(ADDRESS))
    device(tmp_path, "mlx5_10", "ens1f1np1", {}, state="1: DOWN")
    found = rdma(str(tmp_path))
    local = table(ADDRESS)[0][0]
    assert found["devices"] == {
        "mlx5_0": {
            "1": {
                "state": "ACTIVE",
                "interfaces": ["ens1f0np0"],
                "gids": [
                    [0, local, V1],
                    [1, local, V2],
                    [2, gid_of(ADDRESS), V1],
                    [3, gid_of(ADDRESS), V2],
                ],
            }
        },
        "mlx5_10": {"1": {"state": "DOWN", "interfaces": ["ens1f1np1"], "gids": []}},
    }
    assert found["interfaces"] == {
        "ens1f0np0": ["0c:42:a1:00:00:01", True],
        "ens1f1np1": ["0c:42:a1:00:00:02", False],
    }


def test_a_host_without_rdma_has_interfaces_and_no_device(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", "0c:42:a1:00:00:01", carrier="")
    found = rdma(str(tmp_path))
    assert found["devices"] == {} and found["interfaces"] == {"eth0": ["0c:42:a1:00:00:01", None]}
    assert rdma(str(tmp_path / "nothing"))["interfaces"] == {}


def test_files_that_are_no_attributes_are_left_out_and_end_the_reading_of_nothing_else(
    tmp_path: Path,
) -> None:
    interface(tmp_path, "ens1", "0c:42:a1:00:00:01")
    port = device(tmp_path, "mlx5_0", "ens1", table(ADDRESS))
    os.mkfifo(port / "pipe")
    (port / "state").unlink()
    (port / "pipe").rename(port / "state")
    gids = port / "gids"
    for name, content in (
        ("x", gid_of(ADDRESS)),
        ("²", gid_of(ADDRESS)),
        ("16", "fe80::1"),
        ("17", "\x1b[2J" + gid_of(ADDRESS)),
        ("18", gid_of(ADDRESS) + "\n" + "x" * 1_000_000),
    ):
        (gids / name).write_text(content)
    (gids / "19").mkdir()
    (gids / "20").symlink_to(gids / "20")
    (port / "gid_attrs" / "types" / "3").write_bytes(b"\xff\x00\x1b[2J")
    (tmp_path / "infiniband" / "mlx5_1").write_text("no folder")
    (tmp_path / "infiniband" / "a\nb").mkdir()
    found = rdma(str(tmp_path))
    assert list(found["devices"]) == ["mlx5_0", "mlx5_1"] and found["devices"]["mlx5_1"] == {}
    read = found["devices"]["mlx5_0"]["1"]
    assert read["state"] == "" and read["interfaces"] == ["ens1"]
    assert [row[0] for row in read["gids"]] == [0, 1, 2, 3, 18]
    assert read["gids"][3][2] == "" and json.dumps(found).isascii()


def test_what_is_read_is_limited(tmp_path: Path) -> None:
    for number in range(MOST_DEVICES + 3):
        device(tmp_path, f"mlx5_{number}", "ens1", {}, slots=1)
    rows = {index: (gid_of(ADDRESS), V2) for index in range(MOST_GIDS + 9)}
    shutil.rmtree(tmp_path / "infiniband" / "mlx5_0")
    device(tmp_path, "mlx5_0", "ens1", rows, slots=MOST_GIDS + 9)
    found = rdma(str(tmp_path))["devices"]
    assert list(found)[-1] == f"mlx5_{MOST_DEVICES - 1}" and len(found) == MOST_DEVICES
    assert [row[0] for row in found["mlx5_0"]["1"]["gids"]] == list(range(MOST_GIDS))


@pytest.mark.lab
def test_the_command_reads_the_hosts_own_devices_and_what_its_interfaces_were_called(
    spaces: Callable[[str], Space], tmp_path: Path
) -> None:
    here, other = spaces("gpu01"), spaces("far")
    here.fibre(1, other, 1)
    [made] = here.agent("provision", facts("gpu01", 1, 1))
    assert made["changed"], made
    mac = here.mac("opt1")
    [found] = here.agent("rdma")
    assert found["rdma"]["devices"] == {} and found["rdma"]["provisioned"] == {"opt1": mac}
    assert found["rdma"]["interfaces"]["opt1"] == [mac, True]
    device(tmp_path, "mlx5_0", "opt1", {1: (gid_of(ADDRESS), V2), 2: (NO_GID, V1)})
    over = (
        "mkdir /run/sys && mount -t sysfs sys /run/sys && mount -t tmpfs class /sys/class"
        f" && ln -s /run/sys/class/net /sys/class/net && cp -r {tmp_path}/infiniband /sys/class/"
        " && ip link set opt1 down && ip link set opt1 name ens9 && ip link set ens9 up"
    )
    done = here.run("sh", "-c", over)
    assert done.returncode == 0, done.stderr
    [found] = here.agent("rdma")
    assert found["rdma"]["devices"]["mlx5_0"]["1"]["gids"] == [[1, gid_of(ADDRESS), V2]]
    assert found["rdma"]["provisioned"] == {"opt1": mac}
    assert (
        "opt1" not in found["rdma"]["interfaces"] and found["rdma"]["interfaces"]["ens9"][0] == mac
    )


@pytest.mark.lab
def test_mac_addresses_that_were_swapped_do_not_become_what_is_noted(
    spaces: Callable[[str], Space],
) -> None:
    here, other = spaces("gpu01"), spaces("far")
    for port in (1, 2):
        here.fibre(port, other, port)
    given = facts("gpu01", 1, 2)
    here.agent("provision", given)
    before = {name: here.mac(name) for name in ("opt1", "opt2")}
    for old, new in (("opt1", "x"), ("opt2", "opt1"), ("x", "opt2")):
        here.ip("link", "set", old, "down")
        here.ip("link", "set", old, "name", new)
    here.agent("boot")
    assert here.agent("rdma")[0]["rdma"]["provisioned"] == before
    [made] = here.agent("provision", given)
    [found] = here.agent("rdma")
    assert found["rdma"]["provisioned"] == before
    assert any(note.startswith("opt1, opt2: the MAC address of another") for note in made["notes"])
    here.run("rm", "/run/var/macs.json")
    here.agent("provision", given)
    [found] = here.agent("rdma")
    assert found["rdma"]["provisioned"] == {"opt1": before["opt2"], "opt2": before["opt1"]}
