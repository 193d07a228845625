"""`doctor`: each failing line has its fix and what still works."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.inventory.lab import Lab, read_lab
from orchestrator.inventory.segments import Segment
from orchestrator.settings import load
from orchestrator.store.keys import key_of
from orchestrator.store.locks import locks_of, who
from orchestrator.store.scope import Scope
from orchestrator.store.store import Store
from orchestrator.store.tagouts import Tagouts
from orchestrator.verify import doctor, doctor_reach, doctor_store
from orchestrator.verify import doctor_lab as doctorlab
from orchestrator.verify.probe import Probe
from tests.store.test_store_faults import damaged


def only(monkeypatch: pytest.MonkeyPatch, *checks: Probe) -> None:
    monkeypatch.setattr(doctor, "examine", lambda settings: list(checks))


def test_every_check_that_is_not_ok_has_a_fix_and_says_what_works(cli: Any) -> None:
    checks = cli("doctor", "--json").json["data"]["checks"]
    assert len(checks) > 10
    for check in checks:
        assert check["state"] in ("ok", "warn", "fail")
        assert check["state"] == "ok" or (check["fix"] and check["works"]), check


def test_a_check_whose_program_does_not_end_is_told_beside_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def late(command: list[str], **options: Any) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(doctor, "lab_checks", lambda settings: [])
    monkeypatch.setattr(subprocess, "run", late)
    found = {
        check.name: check
        for check in doctor.examine(load({"state_dir": str(tmp_path), "data_dir": str(tmp_path)}))
    }
    assert (
        found["gate"].state == "warn"
        and "had not ended after 30 s" in found["gate"].detail
        and found["gate"].fix
    )
    assert found["testbed"].state == "ok"


def test_hosts_that_fail_alike_share_one_line(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Probe(
        "gpu01",
        "fail",
        "answers, but its agent does not run",
        "testbed up",
        "the other hosts",
        "reach",
    )
    only(
        monkeypatch,
        ended,
        replace(ended, name="gpu02"),
        replace(ended, name="gpu03", detail="no answer"),
        replace(ended, name="gpu04"),
    )
    result = cli("doctor")
    lines = [
        line.split(maxsplit=1)[1] for line in result.out.splitlines() if line.startswith("  fail")
    ]
    assert [line.split("  ")[0] for line in lines] == [
        "gpu01 gpu02 gpu04",
        "gpu03",
    ] and result.out.count("fix:") == 2


def test_a_good_machine_is_zero(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    only(
        monkeypatch,
        Probe("python", "ok", "3.11"),
        Probe("torch", "warn", "not installed", "pip install torch", "all but training"),
    )
    result = cli("doctor")
    assert (
        result.code == 0
        and result.out.endswith("All checks passed\n")
        and "fix: pip install torch" in result.out
    )


@pytest.mark.parametrize(
    ("check", "exit_code", "word"),
    [
        (
            Probe("sshd", "fail", "not found", "apt-get install openssh-server", "hardware labs"),
            2,
            "E-MISSING",
        ),
        (
            Probe("inventory", "fail", "hosts.yml:3:1: no", "correct it", "history", "inventory"),
            3,
            "E-BAD-FILE",
        ),
        (
            Probe("ocs1", "fail", "refused", "check its power", "the others", "reach"),
            5,
            "E-UNREACHABLE",
        ),
    ],
)
def test_a_failure_is_told_with_fix_and_exit_code(
    cli: Any, monkeypatch: pytest.MonkeyPatch, check: Probe, exit_code: int, word: str
) -> None:
    only(monkeypatch, check, Probe("ocs2", "ok", "tcp://", area="reach"))
    result = cli("doctor")
    assert result.code == exit_code and f"{word} 1 check failed: {check.name}" in result.err
    assert (
        f"  fail {check.name}" in result.out
        and f"fix: {check.fix}" in result.out
        and f"still works: {check.works}" in result.out
    )
    assert cli("doctor", "--json").json["code"] == word


def test_a_broken_inventory_is_told_with_its_lines(cli: Any) -> None:
    folder = cli.home / "inventory" / "emulated"
    for name in ("hosts.yml", "fibres.yml"):
        (folder / name).write_text("{}\n")
    (folder / "devices.yml").write_text("devices: [\n")
    (found,) = [
        c for c in cli("doctor", "--json").json["data"]["checks"] if c["name"] == "inventory"
    ]
    assert found["state"] == "fail" and "devices.yml" in found["detail"]


def test_a_missing_program_is_told_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor,
        "_find",
        lambda program: None if program in ("ip", "ansible-playbook") else f"/bin/{program}",
    )
    failed = {c.name: c for c in doctor._programs() if c.state == "fail"}
    assert (
        set(failed) == {"ip", "ansible-playbook"} and failed["ip"].fix == "apt-get install iproute2"
    )


def test_a_kernel_feature_that_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_namespace", lambda: ["env"])
    monkeypatch.setattr(
        doctor,
        "_KERNEL",
        (
            ("veth", "CONFIG_VETH", "echo no such device >&2; false"),
            ("bridges", "CONFIG_BRIDGE", "true"),
        ),
    )
    veth, bridges = doctor._kernel()
    assert (veth.state, veth.detail, bridges.state) == (
        "fail",
        "no such device",
        "ok",
    ) and "CONFIG_VETH" in veth.fix


def test_a_kernel_without_bpf_is_a_warning_that_says_what_it_is_for_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def tried(message: str, status: int) -> doctor.Probe:
        done = subprocess.CompletedProcess([], status, f"{message}\n", "")
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
        (probe,) = doctor._gate()
        return probe

    missing = tried(
        "[Errno 1] a rotor whose slots are short needs BPF (root, CONFIG_BPF_SYSCALL, cls_bpf): Operation not permitted",
        1,
    )
    assert missing.state == "warn" and "Operation not permitted" in missing.detail
    assert "CONFIG_NET_CLS_BPF" in missing.fix and "under 100 ms" in missing.works
    assert tried("ok", 0).state == "ok"


@pytest.mark.parametrize(
    ("address", "where"),
    [
        ("tcp://10.0.0.1:5025", ("10.0.0.1", 5025)),
        ("visa://TCPIP::10.0.0.1::5025::SOCKET", ("10.0.0.1", 5025)),
        ("visa://TCPIP::10.0.0.1::INSTR", None),
        ("serial:///dev/ttyUSB0?baud=38400", None),
    ],
)
def test_an_address_says_what_can_be_tried(address: str, where: object) -> None:
    assert doctorlab.endpoint(address) == where


def test_a_lab_that_is_left_over_is_named_by_its_process(tmp_path: Path) -> None:
    assert doctorlab.leftovers(tmp_path) == []
    with (tmp_path / "lab.pid").open("w") as held:
        assert doctorlab.leftovers(tmp_path) == []
        fcntl.flock(held, fcntl.LOCK_EX)
        assert doctorlab.leftovers(tmp_path) == [os.getpid()]


# The lab's process dies before it is ready, as it did on Python 3.13.
DIES = """
import sys
import emulators.__main__ as program
def dies(*arguments):
    raise NotADirectoryError(20, "Not a directory", "control.sock")
program.serve = dies
sys.exit(program.main(["--devices-only", sys.argv[1]]))
"""


def test_a_lab_that_could_not_start_is_told_until_it_starts(tmp_path: Path) -> None:
    inventory, state = tmp_path / "inventory", tmp_path / "state"
    argv = ["--hosts", "2", "--free-ports", "--out", str(inventory), "--state", str(state)]
    subprocess.run(
        [sys.executable, "-m", "emulators.generate", *argv], check=True, stdout=subprocess.DEVNULL
    )
    died = subprocess.run(
        [sys.executable, "-c", DIES, str(inventory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert died.returncode == 2 and "the lab did not start" in died.stderr
    notified = doctorlab.emulated(inventory)
    assert (
        notified.state == "fail"
        and notified.detail.startswith("did not start: ")
        and "NotADirectoryError" in notified.detail
    )
    assert any(
        check.name == "emulated lab" and check.state == "fail"
        for check in doctorlab.lab_checks(load({"inventory": str(inventory)}))
    )
    here, other = os.pipe()
    with open(here, "rb") as ready:  # noqa: PTH123 - a descriptor
        running = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "emulators",
                "--devices-only",
                "--foreground",
                "--ready-fd",
                str(other),
                str(inventory),
            ],
            pass_fds=(other,),
            stdout=subprocess.DEVNULL,
        )
        os.close(other)
        try:
            assert ready.readline() == b"ready\n"
        finally:
            running.terminate()
            running.wait(30)
    assert doctorlab.emulated(inventory).state == "ok"


def test_a_python_newer_than_any_tried_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_name(doctor._python())["python"].state == "ok"
    monkeypatch.setattr(doctor, "TRIED", (3, 10))
    found = by_name(doctor._python())["python"]
    assert found.state == "warn" and "only up to 3.10" in found.detail and "python3.10" in found.fix


def test_packages_of_others_that_have_our_names_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert by_name(doctor._python())["package names"].state == "ok"
    (tmp_path / "dashboards").mkdir()
    (tmp_path / "dashboards" / "__init__.py").touch()
    code = "import optical_testbed_home, json; print(json.dumps(optical_testbed_home.hidden_packages()))"
    command, path = [sys.executable, "-P", "-c", code], {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"dashboards": str(tmp_path / "dashboards")}
    monkeypatch.setattr(
        doctor.optical_testbed_home,
        "hidden_packages",
        lambda: {"dashboards": "/elsewhere/dashboards"},
    )
    found = by_name(doctor._python())["package names"]
    assert found.state == "fail" and "dashboards is /elsewhere/dashboards" in found.detail


def test_a_store_that_is_broken_is_told(cli: Any) -> None:
    (cli.home / "data").mkdir()
    (cli.home / "data" / "testbed.sqlite3").write_bytes(b"no store" * 500)
    (found,) = [c for c in cli("doctor", "--json").json["data"]["checks"] if c["name"] == "store"]
    assert found["state"] == "fail" and "testbed doctor --store" in found["fix"]


# --- the machine


def by_name(checks: list[Probe]) -> dict[str, Probe]:
    return {check.name: check for check in checks}


def test_versions_are_told_and_an_ansible_of_another_age_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = by_name([*doctor._python(), *doctor._versions()])
    assert {"testbed", "python", "kernel release", "ansible-core", "OpenSSH"} <= set(found)
    assert found["OpenSSH"].state == "ok" and "OpenSSH" in found["OpenSSH"].detail
    monkeypatch.setattr(doctor, "_version", lambda package: "2.9.1")
    old = by_name(doctor._versions())["ansible-core"]
    assert old.state == "warn" and "'ansible-core>=2.17,<2.20'" in old.fix


def test_an_ssh_that_does_not_take_the_playbooks_options_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(
        '#!/bin/sh\n[ "$1" = -V ] && echo OpenSSH_7.4 >&2 && exit 0\necho "Bad SSH2 KexAlgorithms" >&2\nexit 255\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setattr(doctor, "_find", lambda program: str(ssh) if program == "ssh" else None)
    found = by_name(doctor._versions())["OpenSSH"]
    assert (
        found.state == "fail"
        and found.detail == "OpenSSH_7.4: Bad SSH2 KexAlgorithms"
        and "8.1" in found.fix
    )


def test_influxd_and_grafana_are_told_where_they_are_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("influxd", "grafana"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} 9.9 $@\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = by_name(doctor._versions())
    assert (
        found["influxd"].detail == "influxd 9.9 version"
        and found["grafana"].detail == "grafana 9.9 server -v"
    )


def test_a_testbed_that_is_not_on_the_path_or_another_one_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert doctor._path()[0].state == "ok"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (
        doctor._path()[0].state == "warn"
        and str(Path(sys.executable).parent) in doctor._path()[0].fix
    )
    (tmp_path / "testbed").write_text("#!/bin/sh\n")
    (tmp_path / "testbed").chmod(0o755)
    assert "not the one that runs here" in doctor._path()[0].detail


def test_services_are_asked_where_the_environment_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/ping" else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    for name in ("TESTBED_INFLUX_URL", "TESTBED_GRAFANA_URL"):
        monkeypatch.delenv(name, raising=False)
    assert doctor._services(load({})) == []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("TESTBED_INFLUX_URL", url)
        monkeypatch.setenv("TESTBED_GRAFANA_URL", url + "/")
        influx, grafana = doctor._services(load({}))
        server.shutdown()
        thread.join()
    assert influx.state == "ok" and grafana.state == "warn" and "503" in grafana.detail
    assert doctor._services(load({}))[0].state == "warn", "it was stopped"
    monkeypatch.setenv("TESTBED_GRAFANA_URL", "file:///etc/passwd")
    assert "wanted http" in doctor._services(load({}))[1].detail
    monkeypatch.setenv("TESTBED_INFLUX_URL", "auto")
    monkeypatch.setattr(doctor, "_find", lambda program: None)
    assert "influxd is not installed" in doctor._services(load({}))[0].detail


def test_little_room_on_a_disk_is_told(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load({})
    assert {c.state for c in doctor._disk(settings)} == {"ok"}
    monkeypatch.setattr(doctor, "_FREE_MB", 1 << 40)
    assert {c.state for c in doctor._disk(settings)} == {"warn"}
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert {c.state for c in doctor._disk(settings)} == {"fail"}


# --- the store


def test_files_that_others_may_write_or_read_are_told(cli: Any) -> None:
    settings = load({})
    run = settings.run_dir("2026-11-21-0001")
    run.mkdir(parents=True, mode=0o700)
    for folder in (settings.state_dir, settings.state_dir / "runs"):
        folder.chmod(0o755)
    assert doctor_store.file_modes(settings)[0].state == "ok"
    run.chmod(0o755)
    assert (
        doctor_store.file_modes(settings)[0].state == "warn"
        and "0001" in doctor_store.file_modes(settings)[0].detail
    )
    settings.state_dir.chmod(0o777)
    assert (
        doctor_store.file_modes(settings)[0].state == "fail"
        and doctor_store.file_modes(settings)[0].fix == f"chmod go-w {settings.state_dir}"
    )


def test_a_run_that_died_is_told_with_both_ways_on(cli: Any) -> None:
    settings = load({})
    assert [c.state for c in doctor_store.store_checks(settings)] == ["ok"]
    program = (
        "import os, sys; from pathlib import Path; from orchestrator.store.store import Store as S\n"
        "store = S(Path(sys.argv[1])); run = store.new_run('up', 'l', plan_name='ring'); print(run.id, flush=True); os._exit(9)"
    )
    settings.store_path.parent.mkdir(mode=0o700)
    ended = subprocess.run(
        [sys.executable, "-c", program, settings.store_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 9, ended.stderr
    (died,) = [c for c in doctor_store.store_checks(settings) if c.name == "run that died"]
    run = ended.stdout.strip()
    assert (
        died.state == "warn"
        and f"testbed resume {run}" in died.fix
        and f"testbed rollback {run}" in died.fix
    )
    with Store(settings.store_path, durable=False) as store:
        store.resolve([run], store.new_run("up", "l").id)
    assert "run that died" not in [c.name for c in doctor_store.store_checks(settings)], (
        "another run has put it right"
    )


# --- the lab

DEVICES = 'lab: l\ndevices: {{ocs1: {{driver: polatis-scpi, address: "{}", timeout_s: 0.3{}}}}}'
FIBRES = 'fibres: [{name: f1, host: gpu01, port: 1, device: ocs1, enters: "1", leaves: "17"}]'


def lab_at(
    address: str = "tcp://127.0.0.1:1", more: str = "", port: int = 22, key: str = ""
) -> Lab:
    hosts = f"""all: {{hosts: {{gpu01: {{ansible_host: 127.0.0.1, ansible_port: {port}, testbed_host_id: 1,
      ansible_ssh_private_key_file: "{key}", testbed_ports: {{1: {{interface: e1}}}}}}}}}}"""
    return read_lab(hosts, DEVICES.format(address, more), FIBRES)


def test_locks_and_tags_that_stand_are_told_with_who_and_how_to_end_them(cli: Any) -> None:
    settings, lab = load({}), lab_at()
    assert [c.detail for c in doctorlab.holders(lab, settings)] == ["none"]
    with Store(settings.store_path) as store:
        assert doctorlab.holders(lab, settings)[0].state == "ok"
        locks = locks_of(lab, settings, store)
        mine = locks.take(
            "reservation", Scope(devices=frozenset({"ocs1"})), "my afternoon", for_s=60
        )
        tag = Tagouts(store, key_of(lab), who(settings)).set("ocs1", "new fan")
        own, tagged = doctorlab.holders(lab, settings)
        assert own.state == "ok" and mine.id in own.fix
        assert tagged.state == "warn" and "new fan" in tagged.detail and tag.id in tagged.fix
        locks.release(mine.id)
        locks.take("run", Scope(devices=frozenset({"ocs1"})), "up ring")
        held = doctorlab.holders(lab, settings)[0]
        assert held.state == "warn" and "up ring" in held.detail and "--wait" in held.fix
        assert "up ring" in doctorlab.busy(lab, settings)
    assert [c.detail for c in doctor_reach.reach(lab, "somebody: up ring") if c.name == "ocs1"] == [
        "not asked, a change is under way: somebody: up ring"
    ]


def test_a_password_that_cannot_be_had_or_lies_open_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "devices.yml"
    file.write_text("")
    file.chmod(0o644)
    monkeypatch.setenv("OCS1_WORD", "x")
    assert doctorlab.secrets(lab_at(more=", password_env: OCS1_WORD"), tmp_path)[0].state == "ok"
    monkeypatch.delenv("OCS1_WORD")
    (missing,) = doctorlab.secrets(lab_at(more=", password_env: OCS1_WORD"), tmp_path)
    assert missing.state == "fail" and missing.fix == "export OCS1_WORD=..."
    (clear,) = doctorlab.secrets(lab_at(more=", password: x"), tmp_path)
    assert clear.state == "warn" and "ocs1" in clear.detail and str(file) in clear.fix
    file.chmod(0o600)
    assert doctorlab.secrets(lab_at(more=", password: x"), tmp_path)[0].state == "ok"


def test_a_key_that_others_can_read_is_told(tmp_path: Path) -> None:
    key = tmp_path / "id_ed25519"
    key.write_text("")
    key.chmod(0o600)
    assert doctorlab.keys(lab_at(key=str(key)))[0].state == "ok"
    key.chmod(0o640)
    assert doctorlab.keys(lab_at(key=str(key)))[0].fix == f"chmod 600 {key}"


def test_a_port_that_somebody_else_has_is_told_with_who() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        taken = doctorlab.ports_taken(lab_at(f"tcp://127.0.0.1:{port}", port=port))
        assert (
            taken.state == "fail"
            and f"127.0.0.1:{port}" in taken.detail
            and "--free-ports" in taken.fix
        )
        lab = replace(
            lab_at(),
            segments={"ideal": Segment("ideal", {}, 1.0, (), {"cache": {}}, f"127.0.0.1:{port}")},
        )
        assert f"ideal wants 127.0.0.1:{port}: taken" in doctorlab.ports_taken(lab).detail
    assert doctorlab.ports_taken(lab_at(f"tcp://127.0.0.1:{port}", port=port)).state == "ok"


def test_a_lab_whose_inventory_is_gone_is_told_with_its_process(tmp_path: Path) -> None:
    folder = tmp_path / "ended"
    pretend = [
        sys.executable,
        "-c",
        "import sys; print(flush=True); sys.stdin.read()",
        "-m",
        "emulators",
        str(folder),
    ]
    with subprocess.Popen(pretend, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lab:
        assert lab.stdout is not None and lab.stdout.readline()
        (found,) = [c for c in doctorlab.leftover_labs() if str(folder) in c.detail]
        assert found.state == "warn" and found.fix == f"kill {lab.pid}"
        lab.communicate(timeout=10)
    assert not [c for c in doctorlab.leftover_labs() if str(folder) in c.detail]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes mount namespaces")
def test_a_lab_in_a_container_which_alone_sees_its_inventory_is_not_left_over(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "lab"
    script = (
        f'mount -t tmpfs t {tmp_path} && mkdir {folder} && : > {folder}/emulator.yml && exec "$@"'
    )
    pretend = [
        sys.executable,
        "-c",
        "import sys; print(flush=True); sys.stdin.read()",
        "-m",
        "emulators",
        str(folder),
    ]
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *pretend]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lab:
        assert lab.stdout is not None and lab.stdout.readline() and not folder.exists()
        assert not [c for c in doctorlab.leftover_labs() if str(folder) in c.detail]
        lab.communicate(timeout=10)


def test_the_doctor_changes_nothing(cli: Any) -> None:
    before = sorted(str(path) for path in cli.home.rglob("*"))
    cli("doctor", "--json")
    assert sorted(str(path) for path in cli.home.rglob("*")) == before


def test_the_store_alone_is_checked_whole_and_a_damaged_one_is_put_right_on_demand(
    cli: Any, tmp_path: Path
) -> None:
    assert "no runs yet" in cli("doctor", "--store").out
    (tmp_path / "data").mkdir(mode=0o700)
    damaged(tmp_path / "data" / "testbed.sqlite3")
    result = cli("doctor", "--store")
    assert (
        result.code == 2
        and "E-STORE" in result.err
        and "testbed doctor --store --recover" in result.err
    )
    result = cli("doctor", "--store", "--recover")
    assert result.code == 0 and "runs may be missing" in result.out and ".damaged-" in result.out
    assert "is whole: 2" in cli("doctor", "--store").out and cli("run", "list").code == 0
    assert cli("doctor", "--store", "--recover").code == 0, "of a whole one nothing is made"
    assert len(list((tmp_path / "data").glob("*.damaged-*"))) <= 3
    assert cli("doctor", "--recover").code == 2
