"""S20: what another user of this machine puts in the way is neither followed, nor written to, nor
believed, nor waited for.
"""

from __future__ import annotations

import grp
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import emulators.__main__ as emulators_main
from emulators.__main__ import EXIT_MISSING
from optics import TestbedError
from optics.errors import Missing, Untrusted
from orchestrator import emulated as labproc
from orchestrator import made_labs
from orchestrator import processes as background
from orchestrator.cli import main
from orchestrator.cli.events import EventPrinter
from orchestrator.files.atomic import write_whole
from orchestrator.settings import load
from orchestrator.store import one_store as lablock
from orchestrator.store.file import UnsafeStore, private_file
from orchestrator.store.one_store import StoreClaim
from tests.house.repository import ROOT
from tests.security.test_hostile import command

__all__ = ["command"]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="acts as another user, which root alone can"
)

NOBODY = 65534
SECRET = "nobody may read or change this\n"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory like /tmp, in which everybody may make files; tmp_path is closed to others."""
    made = Path(tempfile.mkdtemp(prefix="testbed-others-", dir="/tmp"))
    made.chmod(0o1777)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def treasure(shared: Path) -> Path:
    file = shared / "treasure"
    file.write_text(SECRET)
    file.chmod(0o600)
    return file


def stranger(script: str, *argv: object) -> str:
    """Run a shell script as the user nobody; its arguments are `argv`."""
    command = ["sh", "-eu", "-c", script, "sh", *map(str, argv)]
    ended = subprocess.run(
        command,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "ours.sqlite3"
    path.touch()
    return path


# --- the lab's lock file


PLANTS = {
    "link": 'ln -s "$1" "$2/lab.lock"',
    "dangling link": 'ln -s /etc/made-by-a-stranger "$2/lab.lock"',
    "fifo": 'mkfifo -m 666 "$2/lab.lock"',
    "directory": 'mkdir "$2/lab.lock"',
    "file": 'echo "{}" > "$2/lab.lock"; chmod 666 "$2/lab.lock"',
    "nothing": "true",
}


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("mode", ["755", "777", "1777", "700"])
def test_a_lock_directory_of_somebody_else_is_refused(
    shared: Path, treasure: Path, store: Path, plant: str, mode: str
) -> None:
    folder = shared / "locks"
    stranger(f'mkdir "$2"; {PLANTS[plant]}; chmod {mode} "$2"', treasure, folder)
    with pytest.raises(Untrusted, match="belongs to nobody"):
        StoreClaim(folder / "lab.lock", store, user="ann").acquire()
    assert treasure.read_text() == SECRET and not Path("/etc/made-by-a-stranger").exists()


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_lock_directory_where_others_may_write_is_refused(
    shared: Path, treasure: Path, store: Path, plant: str, mode: int
) -> None:
    folder = shared / "locks"
    folder.mkdir()
    folder.chmod(0o1777)
    stranger(PLANTS[plant], treasure, folder)
    folder.chmod(mode)
    with pytest.raises(Untrusted, match="can write there"):
        StoreClaim(folder / "lab.lock", store, user="ann").acquire()
    assert treasure.read_text() == SECRET and not Path("/etc/made-by-a-stranger").exists()


@pytest.mark.parametrize("plant", [*PLANTS, "hard link"])
def test_what_a_member_of_the_group_put_in_place_of_the_lock_is_not_written(
    shared: Path, treasure: Path, store: Path, plant: str
) -> None:
    folder = shared / "locks"
    folder.mkdir()
    os.chown(folder, 0, NOBODY)
    folder.chmod(0o2770)
    # as root, because the kernel may forbid it to others (fs.protected_hardlinks)
    if plant == "hard link":
        (folder / "lab.lock").hardlink_to(treasure)
    else:
        stranger(PLANTS[plant], treasure, folder)
    if plant in ("file", "nothing"):
        with StoreClaim(folder / "lab.lock", store, user="ann"):
            assert '"ann"' in (folder / "lab.lock").read_text()
    else:
        with pytest.raises(Untrusted, match="is not a lock file"):
            StoreClaim(folder / "lab.lock", store, user="ann").acquire()
    assert treasure.read_text() == SECRET and not Path("/etc/made-by-a-stranger").exists()


def test_doctor_says_who_may_lock_and_that_a_directory_of_somebody_else_is_none(
    shared: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> dict[str, Any]:
        found = json.loads(command("polatis-scpi", 1, "doctor", "--json")[1])["data"]["checks"]
        [only] = [c for c in found if c["name"] == "who may lock"]
        return dict(only)

    folder = shared / "locks"
    monkeypatch.setenv("TESTBED_LOCK_DIR", str(folder))
    assert check()["state"] == "ok"
    folder.mkdir(mode=0o700)
    assert check()["detail"] == f"{folder}: root alone"
    os.chown(folder, 0, NOBODY)
    folder.chmod(0o2770)
    assert check()["detail"] == f"{folder}: root and group {grp.getgrgid(NOBODY).gr_name}"
    os.chown(folder, NOBODY, NOBODY)
    assert check()["state"] == "fail" and "belongs to nobody" in check()["detail"]


@pytest.mark.parametrize("plant", ['ln -s "$1" "$2"', 'mkfifo "$2"', 'echo x > "$2"'])
def test_what_stands_in_place_of_the_lock_directory_is_refused(
    shared: Path, tmp_path: Path, store: Path, plant: str
) -> None:
    stranger(plant, tmp_path, shared / "locks")
    with pytest.raises(Untrusted, match="is not a directory"):
        StoreClaim(shared / "locks" / "lab.lock", store, user="ann").acquire()
    assert list(tmp_path.iterdir()) == [store]


HOLD = """python3 -c '
import fcntl, os, sys
try:
    fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("held")
except OSError as error:
    print(type(error).__name__)
' "$1" """


def test_somebody_outside_the_group_cannot_hold_the_lock_and_is_told_how_to_join(
    shared: Path, store: Path
) -> None:
    note = shared / "locks" / "lab.lock"
    with StoreClaim(note, store, user="ann"):
        assert (
            stat.S_IMODE(note.parent.stat().st_mode) == 0o700
            and stat.S_IMODE(note.stat().st_mode) == 0o600
        )
        assert stranger(HOLD, note) == "PermissionError\n"
    note.parent.chmod(0o2770)  # shared with root's group, of which nobody is no member
    with StoreClaim(note, store, user="ann"):
        assert stranger(HOLD, note) == "PermissionError\n"
    ours = StoreClaim(note, store, user="eve")
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(Missing, match="Permission denied") as refusal:
            ours.acquire()
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
    assert "share-a-lab.md" in refusal.value.hint


def test_two_members_of_the_group_meet_at_one_lock(
    shared: Path, store: Path, tmp_path: Path
) -> None:
    note, other = shared / "locks" / "lab.lock", tmp_path / "other.sqlite3"
    other.touch()
    note.parent.mkdir()
    os.chown(note.parent, 0, NOBODY)
    note.parent.chmod(0o2770)
    with StoreClaim(note, store, user="ann"):
        assert stranger(HOLD, note) == "BlockingIOError\n", "a member may open it"
        with pytest.raises(TestbedError, match="another store"):
            StoreClaim(note, other, user="bob").acquire()
    assert note.stat().st_gid == NOBODY and stat.S_IMODE(note.stat().st_mode) == 0o660


def test_root_hands_the_machines_lock_directory_to_its_group(
    shared: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, group in enumerate((grp.getgrgid(NOBODY).gr_name, "no-such-group-here")):
        folder = shared / f"locks{number}"
        monkeypatch.setattr(lablock, "SHARED", folder)
        monkeypatch.setattr(lablock, "GROUP", group)
        with StoreClaim(folder / "lab.lock", store, user="ann"):
            found = folder.stat()
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == ((NOBODY, 0o2770), (0, 0o700))[number]


# --- settings, inventories and directories of ours


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("SUDO_UID", raising=False)


TOML = 'printf %s "inventory = \\"evil\\"" > "$1/testbed.toml"'


@pytest.mark.usefixtures("settings")
def test_settings_of_somebody_else_are_refused(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger(TOML, shared)
    with pytest.raises(Untrusted, match=r"testbed\.toml: belongs to nobody") as refusal:
        load(env={}, cwd=shared)
    assert "TESTBED_TRUST=nobody" in refusal.value.hint
    assert load(env={"TESTBED_TRUST": "nobody"}, cwd=shared).inventory == shared / "evil"
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert load(env={}, cwd=shared).inventory == shared / "evil", (
        "who became root by sudo has his own settings"
    )


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(
    "plant", ['ln -s "$1/ours" "$2/testbed.toml"', 'mkfifo -m 666 "$2/testbed.toml"']
)
def test_settings_that_somebody_else_put_there_are_refused(
    shared: Path, tmp_path: Path, plant: str
) -> None:
    (tmp_path / "ours").write_text("timeout = 20")
    stranger(plant, tmp_path, shared)
    with pytest.raises(Untrusted, match="belongs to nobody"):
        load(env={}, cwd=shared)


@pytest.mark.usefixtures("settings")
def test_settings_in_a_directory_of_somebody_else_or_that_everybody_may_write_are_refused(
    shared: Path,
) -> None:
    folder = shared / "theirs"
    stranger('mkdir "$1"', folder)
    (folder / "testbed.toml").write_text("timeout = 20")
    with pytest.raises(Untrusted, match=r"theirs: belongs to nobody"):
        load(env={}, cwd=folder)
    os.chown(folder, 0, 0)
    assert load(env={}, cwd=folder).timeout_s == 20
    for loose in (folder / "testbed.toml", folder):
        before = stat.S_IMODE(loose.stat().st_mode)
        loose.chmod(0o777)
        with pytest.raises(Untrusted, match="every user may write it"):
            load(env={}, cwd=folder)
        loose.chmod(before)


@pytest.mark.usefixtures("settings")
def test_a_project_file_does_not_say_whom_to_trust(tmp_path: Path) -> None:
    (tmp_path / "testbed.toml").write_text('trust = "nobody"')
    with pytest.raises(TestbedError, match="trust: is decided elsewhere"):
        load(env={}, cwd=tmp_path)
    (tmp_path / "testbed.toml").unlink()
    with pytest.raises(TestbedError, match="there is no user 'eve-of-nowhere'"):
        load(env={"TESTBED_TRUST": "nobody, eve-of-nowhere"}, cwd=tmp_path)


def inventory(folder: Path) -> Path:
    folder.mkdir()
    for name in ("hosts.yml", "devices.yml", "fibres.yml"):
        (folder / name).touch()
    return folder


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(
    "theirs",
    [
        ".",
        "hosts.yml",
        "devices.yml",
        "fibres.yml",
        "emulator.yml",
        "known_hosts",
        "group_vars",
        "host_vars/gpu01.yml",
    ],
)
def test_an_inventory_in_which_something_belongs_to_somebody_else_is_refused(
    tmp_path: Path, theirs: str
) -> None:
    lab = inventory(tmp_path / "lab")
    assert load({"inventory": str(lab)}, env={}, cwd=tmp_path).inventory == lab
    path = lab / theirs
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        path.mkdir() if theirs == "group_vars" else path.touch()
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(Untrusted, match="belongs to nobody"):
        load({"inventory": str(lab)}, env={}, cwd=tmp_path)
    assert load({"inventory": str(lab)}, env={"TESTBED_TRUST": str(NOBODY)}, cwd=tmp_path)


@pytest.mark.usefixtures("settings")
def test_an_inventory_in_a_directory_of_somebody_else_is_refused(
    shared: Path, tmp_path: Path
) -> None:
    stranger('mkdir -m 755 "$1"', shared / "theirs")
    lab = inventory(shared / "theirs" / "lab")
    (tmp_path / "way").symlink_to(lab)
    for path in (lab, tmp_path / "way"):
        with pytest.raises(Untrusted, match="theirs: belongs to nobody"):
            load({"inventory": str(path)}, env={}, cwd=tmp_path)


@pytest.mark.usefixtures("settings")
def test_an_inventory_lying_in_the_current_directory_is_refused_if_it_is_somebody_elses(
    shared: Path,
) -> None:
    stranger('mkdir -p "$1/inventory/emulated"', shared)
    with pytest.raises(Untrusted, match="belongs to nobody"):
        load(env={}, cwd=shared)


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize("key", ["state_dir", "data_dir"])
def test_a_directory_for_our_files_that_somebody_else_made_is_refused(
    shared: Path, key: str, tmp_path: Path
) -> None:
    stranger('mkdir "$1"', shared / "made")
    with pytest.raises(Untrusted, match="made: belongs to nobody"):
        load(env={f"TESTBED_{key.upper()}": str(shared / "made")}, cwd=tmp_path)


def test_a_store_in_a_directory_of_somebody_else_is_refused(shared: Path) -> None:
    stranger('mkdir -m 755 "$1"', shared / "made")
    with pytest.raises(UnsafeStore, match="belongs to nobody"):
        private_file(shared / "made" / "testbed.sqlite3")


# --- files an operator asks for


def test_a_file_asked_for_is_not_written_through_somebody_elses_link(
    shared: Path, treasure: Path
) -> None:
    stranger('ln -s "$1" "$2/plan.json"; ln -s "$2" "$2/way"', treasure, shared)
    for path in (shared / "plan.json", shared / "way" / "new.json"):
        with pytest.raises(OSError, match="belongs to nobody"):
            write_whole(path, "plan")
    own = shared / "own.json"
    own.symlink_to(treasure)
    write_whole(own, "plan")
    assert treasure.read_text() == "plan" and own.is_symlink(), "one's own link is followed"


def test_the_draft_of_a_file_is_not_written_through_somebody_elses_link(
    shared: Path, treasure: Path
) -> None:
    stranger('ln -s "$1" "$2/.plan.json.$3.new"', treasure, shared, os.getpid())
    write_whole(shared / "plan.json", "plan")
    assert treasure.read_text() == SECRET and (shared / "plan.json").read_text() == "plan"
    assert not [
        p for p in shared.iterdir() if p.name.startswith(".plan") and p.lstat().st_uid == 0
    ], "no draft stays"


# --- an inventory that everybody may write is told


def test_an_inventory_that_everybody_may_write_is_told_by_status_and_doctor(
    command: Any, tmp_path: Path
) -> None:
    command("polatis-scpi", 1, "run", "list")
    lab = tmp_path / "lab"
    for loose, text in ((lab / "devices.yml", "devices.yml"), (lab, str(lab))):
        before = stat.S_IMODE(loose.stat().st_mode)
        for verb in ("status", "doctor"):
            assert "written by every user" not in "".join(
                map(str, command("polatis-scpi", 1, verb))
            ), verb
        loose.chmod(before | 0o002)
        _, out, err = command("polatis-scpi", 1, "status")
        assert (
            f"{text} can be written by every user" in out + err
            and f"chmod -R o-w {lab}" in out + err
        ), out + err
        assert json.loads(command("polatis-scpi", 1, "status", "--json")[1])["data"]["loose"] == [
            str(loose)
        ]
        found = json.loads(command("polatis-scpi", 1, "doctor", "--json")[1])["data"]["checks"]
        [check] = [c for c in found if c["name"] == "rights of the inventory"]
        assert (
            check["state"] == "fail"
            and check["fix"] == f"chmod -R o-w {lab}"
            and str(loose) in check["detail"]
        )
        loose.chmod(before)


# --- an emulated lab, a guard's log, the committer


ACCEPTS = """
import os, socket, sys
os.umask(0)
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1] + "/control.sock")
s.listen(4)
print("ready", flush=True)
while True:
    link, _ = s.accept()
    link.recv(4096)
    link.sendall(b'{"ok": true, "pid": 1}\\n')
    link.close()
"""


def test_a_lab_whose_folder_somebody_else_made_is_neither_started_nor_believed(
    shared: Path, tmp_path: Path
) -> None:
    state = shared / "state"
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
    subprocess.run(
        [*generate, "--out", tmp_path / "lab", "--state", state],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    stranger('mkdir -m 755 "$1"', state)
    start = [sys.executable, "-m", "emulators", tmp_path / "lab", "--devices-only", "--foreground"]
    ended = subprocess.run(start, capture_output=True, text=True, timeout=60, check=False)
    assert (
        ended.returncode == EXIT_MISSING
        and "belongs to user 65534" in ended.stderr
        and not list(state.iterdir())
    )
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    talker = subprocess.Popen(
        [python, "-c", ACCEPTS, state],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert talker.stdout is not None and talker.stdout.readline() == "ready\n"
        with pytest.raises(Untrusted, match="belongs to nobody"):
            labproc.is_running(tmp_path / "lab")
    finally:
        talker.kill()
        talker.communicate()


def test_the_files_of_a_lab_are_not_written_through_links(tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.write_text(SECRET)
    for name, act in (
        ("lab.pid", emulators_main._lock),
        ("lab.log", lambda folder: emulators_main._log_to(folder / "lab.log")),
    ):
        (tmp_path / name).symlink_to(treasure)
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            act(tmp_path)
    assert treasure.read_text() == SECRET


def test_a_guards_log_is_not_written_through_somebody_elses_link(
    shared: Path, treasure: Path
) -> None:
    stranger('ln -s "$1" "$2/guard.log"', treasure, shared)
    with pytest.raises(TestbedError, match="belongs to nobody"):
        EventPrinter("guard", True, True, shared / "guard.log")
    assert treasure.read_text() == SECRET


def test_no_password_goes_to_the_port_of_whoever_owns_the_directory(
    shared: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: None,
) -> None:
    word = shared / "word"
    word.write_text("Kv3-sent-nowhere")
    word.chmod(0o600)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        devices = f'lab: l\ndevices: {{ocs1: {{driver: polatis-tl1, address: "tcp://127.0.0.1:{listener.getsockname()[1]}", \
username: admin, password_file: {word}}}}}\n'
        hosts = "all: {hosts: {gpu01: {testbed_host_id: 1, testbed_ports: {1: {interface: e1}}}}}\n"
        fibres = (
            'fibres: [{name: f1, host: gpu01, port: 1, device: ocs1, enters: "1", leaves: "17"}]\n'
        )
        plant = 'printf %s "inventory = \\"lab\\"" > "$1/testbed.toml"; mkdir "$1/lab"; cd "$1/lab"'
        plant += '; printf %s "$2" > hosts.yml; printf %s "$3" > devices.yml; printf %s "$4" > fibres.yml'
        stranger(plant, shared, hosts, devices, fibres)
        monkeypatch.chdir(shared)
        for argv in (["status"], ["devices"], ["status", "--inventory", "lab"], ["doctor"]):
            code = main.run([*argv, "--timeout", "2s"])
            result = capsys.readouterr()
            assert code == 2 and "E-UNTRUSTED" in result.err, result
        with suppress(TimeoutError):
            heard.append(listener.accept()[0].recv(4096))
    assert not heard


# --- programs that we start


def test_no_program_that_we_start_takes_modules_from_the_current_directory(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: None
) -> None:
    for module in ("json", "argparse", "typer", "yaml"):
        stranger(
            'printf %s "$2" > "$1"',
            shared / f"{module}.py",
            f"open({str(shared / 'MARK')!r}, 'w').close()",
        )
    monkeypatch.chdir(shared)
    started = background.spawn(load(env={}, cwd=tmp_path), ["--version"], tmp_path / "said")
    assert started.wait(60) == 0, (tmp_path / "said").read_text()
    made_labs._generate(tmp_path / "lab", tmp_path / "state", ["dicon-scpi"], None)
    assert not (shared / "MARK").exists()
    starts = [
        (path.name, line)
        for folder in ("orchestrator", "conformance", "drivers", "planner")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r'sys\.executable, (?!"-P")("-|\*words)', line)
    ]
    assert not starts, "python -m looks into the current directory first: -P"
