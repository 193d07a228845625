"""The whole lab: hosts one can log in to, ports that are dark until a device carries light to
them.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.emulators.fabric.emulated import EmulatedLab, eventually

pytestmark = pytest.mark.lab


@pytest.fixture
def dark(lab: EmulatedLab) -> EmulatedLab:
    """The lab with no circuits."""
    assert lab.scpi("ocs1", ":oxc:swit:disc:all") == '0,"No error"'
    lab.ask("settle", device="ocs1", s=0.02)
    return lab


def ssh(lab: EmulatedLab, host: str, command: str) -> subprocess.CompletedProcess[str]:
    port = lab.ask("status")["hosts"][host]["ssh"].rpartition(":")[2]
    options = [
        f"UserKnownHostsFile={lab.state}/known_hosts",
        "StrictHostKeyChecking=yes",
        "BatchMode=yes",
        "GlobalKnownHostsFile=none",
    ]
    argv = [
        "ssh",
        "-F",
        "none",
        "-i",
        f"{lab.state}/id_ed25519",
        "-p",
        port,
        *[w for o in options for w in ("-o", o)],
    ]
    return subprocess.run(
        [*argv, "root@127.0.0.1", command], capture_output=True, text=True, timeout=20, check=False
    )


def test_a_host_is_logged_in_to_with_the_labs_key_and_is_a_machine_of_its_own(
    lab: EmulatedLab,
) -> None:
    done = ssh(
        lab,
        "gpu02",
        "hostname; echo $HOME; ls /sys/class/net; ls -A ~ /var/lib/testbed; cat /proc/sys/kernel/hostname; ps ax | wc -l",
    )
    tokens = done.stdout.split()
    assert tokens[:6] == ["gpu02", "/run/root", "lo", "mgmt", "opt1", "opt2"], done
    assert int(tokens[-1]) < 12  # the machine's processes are not there


def test_python3_on_a_host_is_this_environments(lab: EmulatedLab) -> None:
    assert (
        ssh(lab, "gpu01", "python3 -c 'import sys; print(sys.prefix)'").stdout == f"{sys.prefix}\n"
    )


def test_hosts_know_each_other_on_the_management_network(lab: EmulatedLab) -> None:
    assert ssh(lab, "gpu01", "getent hosts gpu03").stdout.split() == ["10.254.0.3", "gpu03"]
    with lab.inside("gpu01"):
        caller = socket.socket()
    with caller:
        caller.settimeout(5)
        caller.connect(("10.254.0.3", 22))
        assert caller.recv(100).startswith(b"SSH-2.0-")


def test_the_machine_sees_nothing_of_the_lab(lab: EmulatedLab) -> None:
    names = {name for _, name in socket.if_nameindex()}
    assert not {n for n in names if n.startswith(("mgmt", "opt", "h1p", "m1"))}


def test_a_port_without_light_has_no_carrier_and_no_address(dark: EmulatedLab) -> None:
    assert not dark.carrier("gpu01", 1)
    assert "NO-CARRIER" in ssh(dark, "gpu01", "ip link show opt1").stdout
    assert "inet " not in ssh(dark, "gpu01", "ip addr show opt1").stdout


def test_light_by_scpi_brings_carrier_and_packets_both_ways(dark: EmulatedLab) -> None:
    dark.give_address("gpu01", 1, "10.1.0.1")
    dark.give_address("gpu02", 1, "10.1.0.2")
    assert dark.scpi("ocs1", ":oxc:swit:conn:add (@1,2),(@18,17)") == '0,"No error"'
    assert eventually(lambda: dark.carrier("gpu01", 1) and dark.carrier("gpu02", 1))
    sockets = []
    for host, address in (("gpu01", "10.1.0.1"), ("gpu02", "10.1.0.2")):
        with dark.inside(host):
            sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sockets[-1].bind((address, 9000))
        sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"opt1")
        sockets[-1].connect(("10.1.0.2" if host == "gpu01" else "10.1.0.1", 9000))
        sockets[-1].settimeout(5)
    one, two = sockets
    for asking, answering in ((one, two), (two, one)):
        asking.send(b"light?")
        assert answering.recv(100) == b"light?"
    one.close()
    two.close()
    status = dark.ask("status")
    assert status["hosts"]["gpu01"]["ports"]["1"] == {
        "interface": "opt1",
        "light_from": "gpu02:p1",
        "carrier": True,
    }
    assert status["devices"]["ocs1"]["lit"] == [["1", "18"], ["2", "17"]]


def test_light_comes_after_the_switching_time_and_goes_at_once(dark: EmulatedLab) -> None:
    dark.ask("settle", device="ocs1", s=3600.0)
    dark.scpi("ocs1", ":oxc:swit:conn:add (@1,2),(@18,17)")
    assert not eventually(lambda: dark.carrier("gpu01", 1), 0.2)
    dark.scpi("ocs1", ":oxc:swit:disc:all")
    dark.ask("settle", device="ocs1", s=0.2)
    dark.scpi("ocs1", ":oxc:swit:conn:add (@1,2),(@18,17)")
    assert eventually(lambda: dark.carrier("gpu01", 1))
    dark.ask("settle", device="ocs1", s=3600.0)
    dark.scpi("ocs1", ":oxc:swit:disc:all")
    assert eventually(lambda: not dark.carrier("gpu01", 1))
    dark.ask("settle", device="ocs1", s=0.02)


def test_one_way_light_gives_carrier_to_the_receiver_only(dark: EmulatedLab) -> None:
    dark.scpi("ocs1", ":oxc:swit:conn:add (@1),(@18)")
    assert eventually(lambda: dark.carrier("gpu02", 1))
    assert not dark.carrier("gpu01", 1)


def test_a_ring_of_one_way_light_carries_frames_one_way(dark: EmulatedLab) -> None:
    dark.scpi("ocs1", ":oxc:swit:conn:add (@1,2,3),(@18,19,17)")
    assert eventually(lambda: all(dark.carrier(h, 1) for h in ("gpu01", "gpu02", "gpu03")))
    one, two, three = (dark.raw(h, 1) for h in ("gpu01", "gpu02", "gpu03"))
    frame = b"\xff" * 6 + b"\x02" * 6 + b"\x88\xb5" + b"round" * 10
    try:
        assert eventually(lambda: one.send(frame) > 0 and bool(two.recv(100)))
        with pytest.raises(TimeoutError):
            three.recv(100)
    finally:
        for sock in (one, two, three):
            sock.close()


def test_what_is_sent_into_a_broken_circuit_reaches_nobody(dark: EmulatedLab) -> None:
    # gpu01 to gpu02; gpu03 keeps gpu01's receiver lit
    dark.scpi("ocs1", ":oxc:swit:conn:only (@1,3),(@18,17)")
    assert eventually(lambda: dark.carrier("gpu01", 1) and dark.carrier("gpu02", 1))
    # gpu02 receives its own light, gpu01's reaches no receiver
    dark.scpi("ocs1", ":oxc:swit:conn:only (@2,3),(@18,17)")
    assert eventually(
        lambda: (
            dark.ask("light")["light"]["ocs1"] == [["2", "18"], ["3", "17"]]
            and dark.carrier("gpu02", 1)
        )
    )
    with dark.raw("gpu01", 1) as one, dark.raw("gpu02", 1) as two:
        time.sleep(0.01)  # light on is not usable at once
        one.send(b"\xff" * 6 + b"\x02" * 6 + b"\x88\xb5" + b"lost" * 12)
        with pytest.raises(TimeoutError):
            two.recv(100)


def test_moving_a_circuit_again_and_again_leaves_one_redirect_per_port(dark: EmulatedLab) -> None:
    dark.ask("settle", device="ocs1", s=0.0)
    for step in range(20):
        wanted = "(@18,17)" if step % 2 else "(@17,18)"
        dark.scpi("ocs1", f":oxc:swit:conn:only (@1,2),{wanted}")
    lab_root = dark.host_pid("gpu01")
    shown = subprocess.run(
        [
            "nsenter",
            "-t",
            str(parent(lab_root)),
            "-m",
            "-n",
            "ip",
            "netns",
            "exec",
            "ocs",
            "tc",
            "filter",
            "show",
            "dev",
            "h1p1",
            "ingress",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.count("Egress Redirect") == 1, shown


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_port_switched_off_darkens_the_far_end_until_it_is_on_again(dark: EmulatedLab) -> None:
    dark.scpi("ocs1", ":oxc:swit:conn:add (@1,2),(@18,17)")
    assert eventually(lambda: dark.carrier("gpu01", 1))
    assert ssh(dark, "gpu01", "ip link set opt1 down").returncode == 0
    assert eventually(lambda: not dark.carrier("gpu02", 1))
    assert ssh(dark, "gpu01", "ip link set opt1 up").returncode == 0
    assert eventually(lambda: dark.carrier("gpu02", 1) and dark.carrier("gpu01", 1))


def test_a_cut_cable_is_dark_until_it_is_spliced(dark: EmulatedLab) -> None:
    dark.scpi("ocs1", ":oxc:swit:conn:add (@1,2),(@18,17)")
    assert eventually(lambda: dark.carrier("gpu01", 1))
    assert dark.ask("fibre", name="f-gpu02-p1", cut=True)["cut"] == ["f-gpu02-p1"]
    assert not dark.carrier("gpu01", 1) and not dark.carrier("gpu02", 1)
    dark.ask("fibre", name="f-gpu02-p1", cut=False)
    assert dark.carrier("gpu01", 1) and dark.carrier("gpu02", 1)


def test_a_host_whose_sshd_is_down_refuses_and_comes_back(lab: EmulatedLab) -> None:
    assert lab.ask("host.sshd", host="gpu03", up=False)["sshd"] is False
    assert "Connection refused" in ssh(lab, "gpu03", "true").stderr
    assert lab.ask("host.sshd", host="gpu03", up=True)["sshd"] is True
    assert ssh(lab, "gpu03", "hostname").stdout == "gpu03\n"


def test_an_sshd_that_is_slow_lets_every_new_session_wait(lab: EmulatedLab) -> None:
    assert lab.ask("host.sshd", host="gpu03", slow_s=3600.0)["slow_s"] == 3600.0
    address = lab.ask("status")["hosts"]["gpu03"]["ssh"].split(":")
    with socket.create_connection((address[0], int(address[1])), 5) as caller:
        caller.settimeout(0.5)
        with pytest.raises(TimeoutError):
            caller.recv(64)
        assert lab.ask("host.sshd", host="gpu03", slow_s=0.6)["sshd"] is True
        caller.settimeout(30)
        assert caller.recv(64).startswith(b"SSH-2.0-")
    assert lab.ask("host.sshd", host="gpu03", slow_s=0.0)["sshd"] is True
    assert ssh(lab, "gpu03", "hostname").stdout == "gpu03\n"
    assert "wanted 0 to 3600" in lab.ask("host.sshd", host="gpu03", slow_s=-1)["error"]


def test_a_link_that_never_comes_up_stays_without_carrier_in_full_light(dark: EmulatedLab) -> None:
    assert dark.ask("link", host="gpu02", port=1, up=False)["dead"] == ["gpu02:p1"]
    dark.scpi("ocs1", ":oxc:swit:conn:add (@1,2),(@18,17)")
    assert eventually(lambda: dark.carrier("gpu01", 1))
    assert not dark.carrier("gpu02", 1)
    dark.ask("link", host="gpu02", port=1, up=True)
    assert eventually(lambda: dark.carrier("gpu02", 1))


def test_swapped_cables_give_carrier_to_the_wrong_host(dark: EmulatedLab) -> None:
    dark.scpi("ocs1", ":oxc:swit:conn:add (@1),(@18)")
    assert eventually(lambda: dark.carrier("gpu02", 1))
    assert dark.ask("fibre.swap", a="f-gpu02-p1", b="f-gpu03-p1", ends="leaves")["ok"]
    assert eventually(lambda: dark.carrier("gpu03", 1)) and not dark.carrier("gpu02", 1)
    dark.ask("fibre.swap", a="f-gpu02-p1", b="f-gpu03-p1", ends="leaves")
    assert eventually(lambda: dark.carrier("gpu02", 1)) and not dark.carrier("gpu03", 1)


def test_writes_are_counted_by_the_device(dark: EmulatedLab) -> None:
    before = dark.ask("writes")["writes"]["ocs1"]
    dark.scpi("ocs1", ":oxc:swit:conn:stat?")
    assert dark.ask("writes")["writes"]["ocs1"] == before
    dark.scpi("ocs1", ":oxc:swit:conn:add (@1),(@18)")
    assert dark.ask("writes")["writes"]["ocs1"] == before + 1


def test_a_fault_can_be_put_in_and_taken_out(dark: EmulatedLab) -> None:
    number = dark.ask("faults.add", device="ocs1", kind="dark-port", port="1")["number"]
    dark.scpi("ocs1", ":oxc:swit:conn:add (@1,2),(@18,17)")
    assert eventually(lambda: dark.carrier("gpu01", 1))
    assert not dark.carrier("gpu02", 1)
    assert dark.ask("faults.remove", device="ocs1", number=number)["ok"]
    assert eventually(lambda: dark.carrier("gpu02", 1))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"op": "dance"}, "unknown op 'dance'; known: status, light"),
        ({"op": "settle", "device": "ocs9", "s": 1}, "no device ocs9; there are ocs1, ocs2"),
        ({"op": "fibre", "name": "f-x", "cut": True}, "no fibre f-x"),
        ({"op": "host.sshd", "host": "gpu99", "up": True}, "no running host gpu99"),
        ({"op": "settle", "device": "ocs1"}, "settle: s is missing"),
    ],
)
def test_a_bad_control_request_is_answered_with_the_reason(
    lab: EmulatedLab, request_: dict[str, object], message: str
) -> None:
    answer = lab.ask(**request_)  # type: ignore[arg-type]
    assert answer["ok"] is False
    assert message in answer["error"]


def test_secrets_and_the_control_socket_are_the_owners_alone(lab: EmulatedLab) -> None:
    for name, mode in (
        ("", 0o700),
        ("id_ed25519", 0o600),
        ("control.sock", 0o600),
        ("host_keys/gpu01", 0o600),
    ):
        assert (lab.state / name).stat().st_mode & 0o777 == mode, name
