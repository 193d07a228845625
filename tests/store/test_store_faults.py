"""A store that cannot be used: a full disk and a damaged file are distinguished, and nobody is
told to throw it away.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from optical_testbed_home import environment
from optics import CrossConnect, Locked, Port, StoreFailed
from orchestrator.change.run import keep_plan
from orchestrator.store import fault as storefault
from orchestrator.store import rescue
from orchestrator.store.file import private_file
from orchestrator.store.schema import SCHEMA, TABLES
from orchestrator.store.store import Store

A = CrossConnect(Port("ocs1", "1"), Port("ocs1", "17"))

# Runs in a mount namespace of its own, on a small file system that it fills to the last byte.
FULL = """
import json, os, subprocess, sys
from pathlib import Path
from optics import CrossConnect, Port
from orchestrator.store.store import Store

disk, used = Path(sys.argv[1]), sys.argv[2] == "used"
os.environ |= {f"TESTBED_{name}_DIR": str(disk / name.lower()) for name in ("DATA", "STATE", "LOCK")}
path = disk / "data" / "testbed.sqlite3"
if used:
    with Store(path) as store:
        run = store.new_run("up", "lab", plan_name="ring")
        store.own("lab/ann", run.id, [CrossConnect(Port("ocs1", "1"), Port("ocs1", "17"))])
        run.finish("ok")
filler = os.open(disk / "filler", os.O_CREAT | os.O_WRONLY)
size = 1 << 16
while size:
    try:
        os.write(filler, b"x" * size)
    except OSError:
        size //= 2
os.close(filler)

def history():
    command = [sys.executable, "-m", "orchestrator.cli.main", "run", "list", "--json"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)

full = history()
(disk / "filler").unlink()
print(json.dumps({"full": full, "after": history()}))
"""


@pytest.mark.parametrize("state", ["used", "fresh"])
def test_a_full_disk_is_told_as_such_and_with_room_the_store_is_as_it_was(
    tmp_path: Path, state: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    unshare = (
        ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    )
    mount = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1" "$4"'
    command = [*unshare, "sh", "-c", mount, "sh", str(disk), sys.executable, FULL, state]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TESTBED_")}
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    reply = json.loads(ran.stdout.splitlines()[-1])
    full = reply["full"]
    assert full["code"] == "E-STORE" and "disk" in full["message"] and "full" in full["message"], (
        full
    )
    assert (
        "free some space" in full["hint"]
        and "mv " not in full["hint"]
        and "leave it there" in full["hint"]
    )
    assert [run["plan_name"] for run in reply["after"]["data"]["runs"]] == (
        ["ring"] if state == "used" else []
    )


def damaged(path: Path) -> None:
    """A store of which a page in the middle of the table of runs was overwritten."""
    with Store(path, durable=False) as store:
        for number in range(300):
            store.new_run("up", "lab", plan_name=f"plan-{number}", plan_text="x" * 300).finish("ok")
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode=DELETE")
    size = db.execute("PRAGMA page_size").fetchone()[0]
    db.close()
    content = path.read_bytes()
    page = content.index(b"plan-150") // size
    path.write_bytes(content[: page * size] + b"\xa5" * size + content[(page + 1) * size :])


def test_a_damaged_store_is_told_when_it_is_read_and_when_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "testbed.sqlite3"
    damaged(path)
    with Store(path, durable=False) as store:
        with pytest.raises(StoreFailed, match=r"is damaged or not a store: .*malformed") as reading:
            store.history("lab", 0)
        with (
            pytest.raises(StoreFailed, match=r"is damaged or not a store: .*malformed"),
            store.transaction() as db,
        ):
            db.execute("UPDATE runs SET message='all'")
    assert "testbed doctor --store" in reading.value.hint and "mv " not in reading.value.hint


def test_faults_of_the_program_are_not_blamed_on_the_file(tmp_path: Path) -> None:
    with (
        Store(tmp_path / "testbed.sqlite3", durable=False) as store,
        pytest.raises(sqlite3.IntegrityError),
    ):
        store.write("INSERT INTO tokens(lab, last) VALUES('lab', NULL)")


def test_an_io_error_is_a_full_disk_only_where_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE  # type: ignore[misc]
    assert "disk is full" not in str(storefault.store_fault(tmp_path / "s", error))
    monkeypatch.setattr(storefault, "LEAST_ROOM", 1 << 80)
    assert "the disk is full (disk I/O error)" in str(storefault.store_fault(tmp_path / "s", error))


@pytest.mark.parametrize(
    ("number", "text"), [(errno.ENOSPC, "No space left"), (errno.EROFS, "Read-only file system")]
)
def test_files_that_cannot_be_made_for_want_of_room_are_a_fault_of_the_disk(
    tmp_path: Path, number: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(StoreFailed, match=text):
        private_file(tmp_path / "testbed.sqlite3")
    monkeypatch.undo()
    monkeypatch.setattr(os, "mkdir", fails)
    with pytest.raises(StoreFailed, match=text):
        private_file(tmp_path / "data" / "testbed.sqlite3")
    monkeypatch.undo()
    monkeypatch.setattr(Path, "write_text", fails)
    with pytest.raises(StoreFailed, match=text):
        keep_plan(tmp_path / "plan.json", "{}")


# --- what can be read of a damaged one


def contents(path: Path) -> set[str]:
    with Store(path, durable=False) as store:
        return {run.plan_name for run in store.history("lab", 0)}


def test_a_whole_store_has_no_findings_and_examining_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "testbed.sqlite3"
    with Store(path, durable=False) as store:
        store.new_run("up", "lab")
        found = rescue.check_store_file(path)  # while somebody else uses it
        assert found.findings == () and found.rows["runs"] == 1
    before = path.read_bytes()
    rescue.check_store_file(path)
    assert path.read_bytes() == before


def test_what_can_be_read_of_a_damaged_store_is_kept_and_so_is_the_damaged_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "testbed.sqlite3"
    damaged(path)
    path.chmod(0o600)
    was = path.read_bytes()
    found = rescue.check_store_file(path)
    assert found.findings and found.rows["runs"] is None
    rescued = rescue.rescue(path)
    assert rescued.kept.read_bytes() == was and stat.S_IMODE(path.stat().st_mode) == 0o600
    left = contents(path)
    lost = {f"plan-{n}" for n in range(300)} - left
    assert "plan-150" in lost and len(lost) < 15, "no more is lost than what stood on the page"
    assert {"plan-0", "plan-299"} <= left and rescued.rows["runs"] == len(left)
    assert any("runs may be missing" in line for line in rescued.losses)
    assert rescue.check_store_file(path).findings == ()
    with Store(path, durable=False) as store:
        assert store.new_run("up", "lab").id.endswith("-0301")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, rescued.kept.name])


def test_what_was_written_last_is_in_the_log_beside_the_file_and_is_read_too(
    tmp_path: Path,
) -> None:
    path = tmp_path / "testbed.sqlite3"
    damaged(path)
    script = (
        "import os, sys; from pathlib import Path; from orchestrator.store.store import Store\n"
        "store = Store(Path(sys.argv[1])); store.new_run('up', 'lab', plan_name='the last'); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    assert path.with_name(path.name + "-wal").stat().st_size > 0
    rescue.rescue(path)
    assert "the last" in contents(path)


def test_a_store_in_use_is_not_exchanged_under_the_hands_of_who_uses_it(tmp_path: Path) -> None:
    path = tmp_path / "testbed.sqlite3"
    damaged(path)
    script = (
        "import sys; from pathlib import Path; from orchestrator.store.store import Store\n"
        "store = Store(Path(sys.argv[1])); store.get('last'); print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout is not None and user.stdout.readline() == "open\n"
        was = path.stat().st_ino
        with pytest.raises(Locked, match="another command is using it"):
            rescue.rescue(path)
        user.communicate()
    assert path.stat().st_ino == was and not list(tmp_path.glob("*.damaged*"))


def test_of_a_file_without_a_readable_page_nothing_is_made_and_it_stays(tmp_path: Path) -> None:
    path = tmp_path / "testbed.sqlite3"
    path.write_bytes(b"these are notes, not a database\n" * 200)
    assert rescue.check_store_file(path).findings == ("file is not a database",)
    with pytest.raises(StoreFailed, match="nothing in it can be read; it was not touched"):
        rescue.rescue(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_a_table_that_is_gone_is_made_anew_and_told(tmp_path: Path) -> None:
    path = tmp_path / "testbed.sqlite3"
    Store(path, durable=False).close()
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE held")
    db.close()
    rescued = rescue.rescue(path)
    assert any("testbed up --adopt" in line for line in rescued.losses)
    with Store(path, durable=False) as store:
        store.own("lab/ann", "r", [A])
        assert store.owned("lab/ann") == {A}


def test_a_rescued_store_of_an_older_version_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "testbed.sqlite3"
    old = sqlite3.connect(path)
    old.executescript(TABLES)
    old.execute(f"PRAGMA user_version={SCHEMA - 1}")
    old.commit()
    old.close()
    rescue.rescue(path)
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA - 1,)
    db.close()
    with pytest.raises(StoreFailed, match="an older testbed"):
        Store(path)


READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" || exit 99
"$2" -P -c '
import sys
from pathlib import Path
from optics.errors import StoreFailed
from orchestrator.store.store import Store
with Store(Path(sys.argv[1]) / "testbed.sqlite3") as store:
    print(*(run.id for run in store.history()))
    try:
        store.new_run("up", "lab")
    except StoreFailed as error:
        print(error)
' "$1"
"""


@pytest.mark.lab
@pytest.mark.parametrize(
    "log", [False, True], ids=["closed", "with a log that was not copied back"]
)
def test_a_store_on_a_read_only_file_system_is_read_and_refuses_to_be_written(
    tmp_path: Path, log: bool
) -> None:
    folder = tmp_path / "data"
    with Store(folder / "testbed.sqlite3") as store:
        run = store.new_run("up", "lab").id
        if log:
            shutil.copytree(folder, tmp_path / "killed")
            folder = tmp_path / "killed"
    argv = ["unshare", "-m", "sh", "-c", READ_ONLY, "sh", str(folder), sys.executable]
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(),
        cwd=tmp_path,
    )
    assert done.stdout.splitlines() == [
        run,
        f"{folder}/testbed.sqlite3 cannot be written: its file system is read-only",
    ], done.stderr
