"""The generator and the reader of inventories agree, and bad inventories are all explained at
once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from emulators.devices.families import WHERE, family
from emulators.generate.command import main
from emulators.generate.defaultlab import calient_aid, generate, polatis_size
from emulators.generate.familylab import Wanted, most_hosts
from emulators.inventory.config import read_config
from emulators.inventory.files import BadInventory
from emulators.lab.running import build_devices

ROOT = Path(__file__).parents[3]


def test_the_committed_inventory_is_what_the_generator_writes(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path)]) == 0
    for file in ("hosts.yml", "devices.yml", "fibres.yml", "emulator.yml"):
        assert (ROOT / "inventory/emulated" / file).read_text() == (tmp_path / file).read_text()


def test_the_committed_lab_of_a_roadm_is_what_the_generator_writes(tmp_path: Path) -> None:
    argv = [
        "--driver",
        "lumentum-netconf",
        "--hosts",
        "8",
        "--port-base",
        "22300",
        "--device-port-base",
        "26000",
    ]
    assert main([*argv, "--out", str(tmp_path / "emulated-wss")]) == 0
    for file in ("hosts.yml", "devices.yml", "fibres.yml", "emulator.yml"):
        assert (ROOT / "inventory/emulated-wss" / file).read_text() == (
            tmp_path / "emulated-wss" / file
        ).read_text()


def test_the_committed_look_ahead_lab_is_what_the_generator_writes(tmp_path: Path) -> None:
    out = tmp_path / "emulated-lookahead"
    assert (
        main(
            [
                "--look-ahead",
                "--port-base",
                "22400",
                "--device-port-base",
                "26100",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    for file in ("hosts.yml", "devices.yml", "fibres.yml", "emulator.yml"):
        assert (ROOT / "inventory/emulated-lookahead" / file).read_text() == (
            out / file
        ).read_text()
    config = read_config(out)
    assert set(build_devices(config)) == {"flip1", "robot1"} and (
        len(config.fibres),
        len(config.trunks),
    ) == (12, 48)


def test_the_committed_ring_of_roadms_is_what_the_generator_writes(tmp_path: Path) -> None:
    out = tmp_path / "emulated-ring"
    argv = [
        "--ring",
        "--driver",
        "lumentum-netconf",
        "--hosts",
        "6",
        "--wavelengths",
        "2",
        "--settle-s",
        "0.2",
    ]
    assert (
        main([*argv, "--port-base", "22500", "--device-port-base", "26200", "--out", str(out)]) == 0
    )
    for file in ("hosts.yml", "devices.yml", "fibres.yml", "emulator.yml"):
        assert (ROOT / "inventory/emulated-ring" / file).read_text() == (out / file).read_text()
    assert (out / "devices.yml").read_text().count("meter_db: 1.0") == 12, (
        "losses of fibres are judged by two meters"
    )
    config = read_config(out)
    assert len(build_devices(config)) == 12 and (len(config.fibres), len(config.trunks)) == (24, 24)
    assert sorted({round(trunk.loss_db, 4) for trunk in config.trunks}) == [-7.365, 0.6003], (
        "amplifiers after each stretch"
    )


def test_the_committed_lab_of_packet_switches_is_what_the_generator_writes(tmp_path: Path) -> None:
    argv = [
        "--hosts",
        "4",
        "--ports",
        "2",
        "--rate-mbps",
        "100",
        "--rack",
        "2",
        "--queue",
        "128:job",
        "--name",
        "emulated-packet",
    ]
    argv += ["--electrical", "ideal@40+aggregate+cache", "--electrical", "oversubscribed:2@40"]
    argv += [
        "--partition",
        "a:0:0.5",
        "--partition",
        "b:1:0.5",
        "--port-base",
        "22600",
        "--device-port-base",
        "26300",
    ]
    assert main([*argv, "--out", str(tmp_path)]) == 0
    for file in ("hosts.yml", "devices.yml", "fibres.yml", "emulator.yml"):
        assert (ROOT / "inventory/emulated-packet" / file).read_text() == (
            tmp_path / file
        ).read_text()
    config = read_config(tmp_path)
    assert len(build_devices(config)) == 2 and [segment.name for segment in config.segments] == [
        "ideal",
        "oversubscribed",
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--partition", "a:0"), "--partition divides hosts that meet at packet switches"),
        (
            ("--electrical", "ideal", "--partition", "a"),
            "--partition a: wanted NAME:LANES or NAME:LANES:SHARE",
        ),
        (
            ("--electrical", "ideal", "--partition", "a:0:1.5"),
            "--partition a:0:1.5: wanted NAME:LANES",
        ),
        (
            ("--electrical", "ideal", "--partition", "a:0,4"),
            "--partition a: 4: a host has the lanes 0 to 3",
        ),
    ],
)
def test_a_partition_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit):
        main([*argv, "--out", str(tmp_path / "lab")])
    assert message in " ".join(capsys.readouterr().err.split()) and not (tmp_path / "lab").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--ring",), "--ring takes one --driver"),
        (
            ("--ring", "--driver", "waveshaper-http"),
            "a ring needs modules that multiplex and demultiplex",
        ),
        (
            ("--ring", "--driver", "lumentum-netconf", "--hosts", "2"),
            "a ring has 3 to 16 hosts, not 2",
        ),
        (
            ("--ring", "--driver", "lumentum-netconf", "--ports", "2"),
            "on a ring of 2 wavelengths a host has 4",
        ),
        (("--ring", "--driver", "lumentum-netconf", "--wavelengths", "5"), "1 to 8 ports each"),
    ],
)
def test_a_ring_that_cannot_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit):
        main([*argv, "--out", str(tmp_path / "lab")])
    assert message in capsys.readouterr().err and not (tmp_path / "lab").exists()


@pytest.mark.parametrize("driver", sorted(WHERE))
def test_a_lab_of_any_family_reads_back_and_its_devices_have_the_ports(
    tmp_path: Path, driver: str
) -> None:
    out = tmp_path / "lab"
    assert (
        main(
            [
                "--driver",
                driver,
                "--ports",
                "2",
                "--state",
                str(tmp_path / "state"),
                "--out",
                str(out),
            ]
        )
        == 0
    )
    config = read_config(out)
    assert [device.driver for device in config.devices.values()] == [driver] * 2
    assert set(build_devices(config)) == set(config.devices)
    assert len(config.fibres) == 2 * len(config.hosts)
    kind = family(driver)
    assert len({fibre.slot for fibre in config.fibres}) == (
        len(config.hosts) if kind.spectral else 1
    )
    assert len({(f.device, f.enters) for f in config.fibres}) == (
        2 if kind.coupler else len(config.fibres)
    )
    assert len(config.trunks) == 2 * len(kind.trunks)


def test_a_lab_of_several_families_has_a_port_of_every_host_at_a_device_of_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for drivers in (sorted(WHERE)[:8], sorted(WHERE)[-8:]):
        argv = [word for driver in drivers for word in ("--driver", driver)]
        assert (
            main(
                [
                    *argv,
                    "--free-ports",
                    "--state",
                    str(tmp_path / "state"),
                    "--out",
                    str(tmp_path / "lab"),
                ]
            )
            == 0
        )
        config = read_config(tmp_path / "lab")
        assert [device.driver for device in config.devices.values()] == drivers and len(
            build_devices(config)
        ) == 8
        assert config.with_hosts and len(config.hosts) == min(
            8, *(most_hosts(family(driver)) for driver in drivers)
        )
        at = {
            (fibre.host, fibre.port): config.devices[fibre.device].driver for fibre in config.fibres
        }
        assert at == {
            (host, port): driver for host in config.hosts for port, driver in enumerate(drivers, 1)
        }
    assert "next: testbed --inventory " in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(
            [
                "--driver",
                "rome-cli",
                "--driver",
                "rotor",
                "--ports",
                "3",
                "--out",
                str(tmp_path / "no"),
            ]
        )
    assert (
        "--ports 3: a host has one port at a device of each --driver, 2 here"
        in capsys.readouterr().err
    )


def test_hosts_send_on_as_many_wavelengths_in_turn_as_are_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "--driver",
                "lumentum-netconf",
                "--hosts",
                "6",
                "--wavelengths",
                "4",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    slots = [fibre.slot for fibre in read_config(tmp_path).fibres]
    assert len(set(slots)) == 4 and slots[4:] == slots[:2]
    with pytest.raises(SystemExit):
        main(["--hosts", "6", "--wavelengths", "4", "--out", str(tmp_path)])
    assert "for a --driver that routes spectrum" in capsys.readouterr().err


def test_more_hosts_than_a_family_takes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--driver", "waveshaper-http", "--hosts", "5", "--out", str(tmp_path)])
    assert "a waveshaper-http takes at most 4 hosts, not 5" in capsys.readouterr().err


def test_the_default_lab_has_12_hosts_48_fibres_and_two_switches_of_each_kind() -> None:
    config = read_config(ROOT / "inventory/emulated")
    assert [len(x) for x in (config.hosts, config.fibres, config.devices)] == [12, 48, 4]
    assert [d.driver for d in config.devices.values()] == ["polatis-scpi"] * 2 + ["calient-tl1"] * 2
    assert config.rate_bps == 250_000_000


@pytest.mark.parametrize(("hosts", "ports"), [(1, 1), (12, 4), (16, 4), (64, 4), (250, 8)])
def test_a_lab_of_any_size_reads_back_with_every_plug_in_a_socket_of_its_own(
    tmp_path: Path, hosts: int, ports: int
) -> None:
    generate(
        tmp_path, Wanted(tuple(range(30_000, 30_000 + hosts)), tuple(range(31_000, 31_000 + ports)))
    )
    config = read_config(tmp_path)
    assert len(config.fibres) == hosts * ports
    assert (
        len({(f.device, f.enters) for f in config.fibres})
        == len({(f.device, f.leaves) for f in config.fibres})
        == hosts * ports
    )


def test_calient_labels_count_eight_ports_to_a_module() -> None:
    assert [calient_aid(n) for n in (1, 8, 9, 16, 17, 64)] == [
        "1.1.1",
        "1.1.8",
        "1.2.1",
        "1.2.8",
        "1.3.1",
        "1.8.8",
    ]


def test_a_polatis_is_as_large_as_its_hosts_need() -> None:
    assert [polatis_size(n) for n in (1, 12, 16, 17, 64, 250)] == [16, 16, 16, 24, 64, 256]


def change(folder: Path, file: str, old: str, new: str) -> Path:
    assert main(["--hosts", "2", "--ports", "2", "--out", str(folder)]) == 0
    path = folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    return folder


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "fibres.yml",
            "host: gpu02, port: 2",
            "host: gpu09, port: 2",
            "f-gpu02-p2: no port 2 on a host gpu09 in hosts.yml",
        ),
        (
            "fibres.yml",
            "device: ocs2",
            "device: ocs7",
            "f-gpu01-p2: device ocs7 is not in devices.yml",
        ),
        (
            "fibres.yml",
            'enters: "2"',
            'enters: "1"',
            "f-gpu02-p1: ocs1 ingress 1 is taken by f-gpu01-p1",
        ),
        (
            "devices.yml",
            "tcp://127.0.0.1",
            "tcp://192.0.2.7",
            "an emulated device answers on tcp://127.0.0.1:PORT",
        ),
        ("devices.yml", "driver: polatis-scpi, ", "", "ocs1: driver is missing"),
        ("hosts.yml", "testbed_host_id: 2", "x: 2", "gpu02: testbed_host_id is missing"),
        (
            "hosts.yml",
            "ansible_user: root",
            "ansible_user: eve",
            "emulated hosts know only root, not eve",
        ),
        ("emulator.yml", "seed: 1", "sead: 1", "emulator.yml: sead: unknown setting"),
        ("emulator.yml", "ocs1:", "ocs9:", "emulator.yml: devices: ocs9 is not in devices.yml"),
    ],
)
def test_a_mistake_is_named_with_its_file(
    tmp_path: Path, file: str, old: str, new: str, message: str
) -> None:
    with pytest.raises(BadInventory) as caught:
        read_config(change(tmp_path, file, old, new))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "n: -264",
            "n: -282",
            "f-gpu02-p1: its slot overlaps that of f-gpu01-p1, whose light enters wss1 in too",
        ),
        ("slot: {n: -264, m: 4}, ", "", "f-gpu02-p1: wss1 ingress in is taken by f-gpu01-p1"),
        (
            "{n: -264, m: 4}",
            "{n: -264.5, m: 4}",
            "slot {'n': -264.5, 'm': 4}: wanted {n: -280, m: 4}, whole numbers",
        ),
        ("{n: -264, m: 4}", "{n: -264, m: 0}", "m is 1 or more"),
        ('leaves: "2"', 'leaves: "1"', "f-gpu02-p1: wss1 egress 1 is taken by f-gpu01-p1"),
    ],
)
def test_fibres_share_a_coupler_only_when_their_light_differs(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert main(["--driver", "finisar-serial", "--hosts", "3", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "fibres.yml").read_text()
    assert old in text
    (tmp_path / "fibres.yml").write_text(text.replace(old, new, 1))
    with pytest.raises(BadInventory) as caught:
        read_config(tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'from: {device: wss1, port: "4201"}',
            'from: {device: wss1, port: "5201"}',
            "wss1 egress 5201 is taken by f-gpu01-p1",
        ),
        (
            'to: {device: wss1, port: "5101"}',
            'to: {device: wss1, port: "4101"}',
            "wss1 ingress 4101 is taken by f-gpu01-p1",
        ),
        (
            'to: {device: wss1, port: "5101"}',
            'to: {device: wss9, port: "5101"}',
            "t-wss1-1: device wss9 is not in devices.yml",
        ),
        (
            'to: {device: wss1, port: "5101"}',
            'to: {device: wss1, port: "5103"}',
            "t-wss1-1: wss1 has no ingress 5103",
        ),
        ('to: {device: wss1, port: "5101"}', "to: {device: wss1}", "port is missing"),
        ('leaves: "5203"', 'leaves: "5299"', "f-gpu03-p1: wss1 has no egress 5299"),
        ("name: t-wss1-1", "name: f-gpu01-p1", "f-gpu01-p1: the name is taken"),
    ],
)
def test_a_trunk_joins_free_ports_of_devices_there_are(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert main(["--driver", "lumentum-netconf", "--hosts", "3", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "fibres.yml").read_text()
    assert old in text
    (tmp_path / "fibres.yml").write_text(text.replace(old, new, 1))
    with pytest.raises(BadInventory) as caught:
        build_devices(read_config(tmp_path))
    assert message in str(caught.value)


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
