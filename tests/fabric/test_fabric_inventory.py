"""The generator and the reader of inventories agree, and bad inventories are all explained at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulators.config import BadInventory, read_config
from emulators.generate import Wanted, calient_aid, generate, main, polatis_size

ROOT = Path(__file__).parents[2]


def test_the_committed_inventory_is_what_the_generator_writes(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path)]) == 0
    for file in ("hosts.yml", "devices.yml", "fibres.yml", "emulator.yml"):
        assert (ROOT / "inventory/emulated" / file).read_text() == (tmp_path / file).read_text()


def test_the_default_lab_has_12_hosts_48_fibres_and_two_switches_of_each_kind() -> None:
    config = read_config(ROOT / "inventory/emulated")
    assert [len(x) for x in (config.hosts, config.fibres, config.devices)] == [12, 48, 4]
    assert [d.driver for d in config.devices.values()] == ["polatis-scpi"] * 2 + ["calient-tl1"] * 2
    assert config.rate_bps == 250_000_000


@pytest.mark.parametrize(("hosts", "ports"), [(1, 1), (12, 4), (16, 4), (64, 4), (250, 8)])
def test_a_lab_of_any_size_reads_back_with_every_plug_in_a_socket_of_its_own(tmp_path: Path, hosts: int, ports: int) -> None:
    generate(tmp_path, Wanted(tuple(range(30_000, 30_000 + hosts)), tuple(range(31_000, 31_000 + ports))))
    config = read_config(tmp_path)
    assert len(config.fibres) == hosts * ports
    assert len({(f.device, f.enters) for f in config.fibres}) == len({(f.device, f.leaves) for f in config.fibres}) == hosts * ports


def test_calient_labels_count_eight_ports_to_a_module() -> None:
    assert [calient_aid(n) for n in (1, 8, 9, 16, 17, 64)] == ["1.1.1", "1.1.8", "1.2.1", "1.2.8", "1.3.1", "1.8.8"]


def test_a_polatis_is_as_large_as_its_hosts_need() -> None:
    assert [polatis_size(n) for n in (1, 12, 16, 17, 64, 250)] == [16, 16, 16, 24, 64, 256]


def change(folder: Path, file: str, old: str, new: str) -> Path:
    assert main(["--hosts", "2", "--ports", "2", "--out", str(folder)]) == 0
    path = folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    return folder


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("fibres.yml", "host: gpu02, port: 2", "host: gpu09, port: 2", "f-gpu02-p2: no port 2 on a host gpu09 in hosts.yml"),
        ("fibres.yml", "device: ocs2", "device: ocs7", "f-gpu01-p2: device ocs7 is not in devices.yml"),
        ("fibres.yml", 'enters: "2"', 'enters: "1"', "f-gpu02-p1: ocs1 ingress 1 is taken by f-gpu01-p1"),
        ("devices.yml", "tcp://127.0.0.1", "tcp://192.0.2.7", "an emulated device answers on tcp://127.0.0.1:PORT"),
        ("devices.yml", "driver: polatis-scpi, ", "", "ocs1: driver is missing"),
        ("hosts.yml", "testbed_host_id: 2", "x: 2", "gpu02: testbed_host_id is missing"),
        ("hosts.yml", "ansible_user: root", "ansible_user: eve", "emulated hosts know only root, not eve"),
        ("emulator.yml", "seed: 1", "sead: 1", "emulator.yml: sead: unknown setting"),
        ("emulator.yml", "ocs1:", "ocs9:", "emulator.yml: devices: ocs9 is not in devices.yml"),
    ],
)
def test_a_mistake_is_named_with_its_file(tmp_path: Path, file: str, old: str, new: str, says: str) -> None:
    with pytest.raises(BadInventory) as caught:
        read_config(change(tmp_path, file, old, new))
    assert says in str(caught.value)


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    change(tmp_path, "fibres.yml", 'enters: "2"', 'enters: "1"')
    text = (tmp_path / "emulator.yml").read_text()
    (tmp_path / "emulator.yml").write_text(text.replace("seed", "sead"))
    with pytest.raises(BadInventory) as caught:
        read_config(tmp_path)
    assert len(str(caught.value).splitlines()) == 2


def test_a_missing_inventory_says_what_one_looks_like(tmp_path: Path) -> None:
    with pytest.raises(BadInventory, match=r"no such file; an inventory directory has hosts\.yml"):
        read_config(tmp_path / "nowhere")
