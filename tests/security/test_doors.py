"""Who may talk to an emulated lab: its own user and root, on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emulators.__main__ import EXIT_MISSING
from emulators.fabric.hosts import JOB_UID
from emulators.lab import control
from tests.security.conftest import Guarded

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")


async def asked(path: Path, uid: int, **request: object) -> dict[str, Any]:
    """What a process of `uid` hears from a control socket that everybody may open; without a
    request it says nothing.
    """
    program = "\n".join(
        (
            "import json, socket, sys",
            "s = socket.socket(socket.AF_UNIX)",
            "s.connect(sys.argv[1])",
            "if sys.argv[2] != '{}': s.sendall(sys.argv[2].encode() + bytes([10]))",
            "print(s.recv(4096).decode())",
        )
    )
    process = await asyncio.create_subprocess_exec(
        "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable,
        "-c",
        program,
        str(path),
        json.dumps(request),
        stdout=subprocess.PIPE,
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
    )
    out, _ = await asyncio.wait_for(process.communicate(), 20)
    return dict(json.loads(out))


@needs_root
async def test_a_stranger_is_refused_even_if_he_can_open_the_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(f"/tmp/testbed-door-{os.getpid()}")
    folder.mkdir()
    folder.chmod(0o755)
    lab = SimpleNamespace(servers={}, light={}, config=SimpleNamespace(hosts={}, seed=1))
    listener = await asyncio.start_unix_server(control.Control(lab).talk, folder / "s")  # type: ignore[arg-type]
    (folder / "s").chmod(0o777)
    try:
        assert (await asked(folder / "s", 0, op="faults.list"))["ok"]
        reply = await asked(folder / "s", 65534)
        assert not reply["ok"] and "another user" in reply["error"]
    finally:
        listener.close()
        await listener.wait_closed()
        (folder / "s").unlink(missing_ok=True)
        folder.rmdir()


@needs_root
async def test_neither_a_stranger_nor_the_user_of_jobs_gets_priority_for_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(f"/tmp/testbed-door-{os.getpid()}")
    folder.mkdir()
    folder.chmod(0o755)
    orders: list[dict[str, object]] = []

    def order(**texts: object) -> dict[str, object]:
        orders.append(texts)
        return {"programs": 1, "lost": []}

    host = SimpleNamespace(name="gpu01", running=True, order=order)
    config = SimpleNamespace(hosts={"gpu01": SimpleNamespace(job_user="testbed-job")}, seed=1)
    lab = SimpleNamespace(servers={}, light={}, hosts={"gpu01": host}, config=config)
    listener = await asyncio.start_unix_server(control.Control(lab).talk, folder / "s")  # type: ignore[arg-type]
    (folder / "s").chmod(0o777)
    try:
        for uid in (65534, JOB_UID):
            # The answer comes without the request being read, so a request that is sent may meet a
            # closed connection.
            with contextlib.suppress(json.JSONDecodeError):
                reply = await asked(folder / "s", uid, op="priority", for_s=60)
                assert not reply["ok"] and "another user" in reply["error"]
            assert orders == []
        assert await asked(folder / "s", 0, op="priority", for_s=60) == {
            "ok": True,
            "programs": {"gpu01": 1},
        }
        await asyncio.sleep(0)
        assert [texts["do"] for texts in orders] in (["priority"], ["priority", "no priority"])
    finally:
        listener.close()
        await listener.wait_closed()
        (folder / "s").unlink(missing_ok=True)
        folder.rmdir()


def test_a_state_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    generate = [
        sys.executable,
        "-m",
        "emulators.generate",
        "--hosts",
        "2",
        "--ports",
        "1",
        "--free-ports",
    ]
    state = tmp_path / "state"
    subprocess.run(
        [*generate, "--out", tmp_path / "lab", "--state", state],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    state.mkdir()
    state.chmod(0o777)
    start = [sys.executable, "-m", "emulators", tmp_path / "lab", "--devices-only", "--foreground"]
    ended = subprocess.run(start, capture_output=True, text=True, timeout=60, check=False)
    assert (
        ended.returncode == EXIT_MISSING
        and "others may write there" in ended.stderr
        and not list(state.iterdir())
    )


@pytest.mark.lab
@pytest.mark.timeout(300)
@needs_root
def test_a_lab_listens_on_loopback_alone_and_its_files_are_private(guarded: Guarded) -> None:
    ports = {int(p) for p in re.findall(r"ansible_port: (\d+)", _text(guarded, "hosts.yml"))}
    ports |= {int(p) for p in re.findall(r"127\.0\.0\.1:(\d+)", _text(guarded, "devices.yml"))}
    assert len(ports) == 8
    listening: dict[int, set[str]] = {}
    loopback = f"{int.from_bytes(socket.inet_aton('127.0.0.1'), sys.byteorder):08X}"
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A" and (port := int(local.split(":")[1], 16)) in ports:
                listening.setdefault(port, set()).add(local.split(":")[0])
    assert set(listening) == ports and all(
        addresses == {loopback} for addresses in listening.values()
    )
    for path in [guarded.folder / "lab", *(guarded.folder / "lab").rglob("*")]:
        assert not path.lstat().st_mode & 0o077, f"{path} {stat.filemode(path.lstat().st_mode)}"


@pytest.mark.lab
@pytest.mark.timeout(300)
@needs_root
def test_the_doctor_finds_a_running_lab_well_and_a_broken_one_ill(guarded: Guarded) -> None:
    checks = {
        c["name"]: c
        for c in guarded.testbed("doctor").envelope["data"]["checks"]
        if c["area"] != "machine"
    }
    ill = [c for c in checks.values() if c["state"] == "fail"]
    assert not ill, ill
    assert {"ocs1", "ocs2", "ocs3", "ocs4", "gpu01", "gpu04", "passwords", "keys"} <= set(checks)
    assert "Calient" in checks["ocs4"]["detail"] and "answers" in checks["gpu01"]["detail"]
    guarded.ask("host.sshd", host="gpu02", up=False)
    try:
        result = guarded.testbed("doctor", OCS4_WORD="wrong")
    finally:
        guarded.ask("host.sshd", host="gpu02", up=True)
    assert result.exit_code == 5 and result.envelope["code"] == "E-UNREACHABLE"
    checks = {c["name"]: c for c in result.envelope["data"]["checks"]}
    assert (
        checks["gpu02"]["state"] == checks["ocs4"]["state"] == "fail"
        and checks["gpu01"]["state"] == "ok"
    )
    assert all(checks[name]["fix"] for name in ("gpu02", "ocs4"))


def _text(lab: Guarded, file: str) -> str:
    return (lab.inventory / file).read_text()
