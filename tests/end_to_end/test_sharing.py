"""Two owners on one emulated lab: side by side where they share nothing, one after the other where
they do.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.conftest import ROOT, TESTBED, Answer, Lab
from tests.kit.waiting import until

ANN, BOB = {"TESTBED_OWNER": "ann"}, {"TESTBED_OWNER": "bob"}


def triangle(*hosts: str, ports: tuple[int, int] = (1, 2)) -> list[tuple[str, str]]:
    """Three hosts in a ring on two ports each, of the four device planes."""
    a, b, c = hosts
    return [
        (f"{a}:p{ports[0]}", f"{b}:p{ports[0]}"),
        (f"{b}:p{ports[1]}", f"{c}:p{ports[1]}"),
        (f"{c}:p3", f"{a}:p3"),
    ]


@pytest.fixture
def shared(lab: Lab) -> Iterator[Lab]:
    """The lab; what its owners and tags left is gone afterwards."""
    yield lab
    for tag in lab.stored("SELECT id FROM tagouts WHERE ended IS NULL"):
        lab.testbed("tagout", "remove", tag, "--steal", "--reason", "the test is over").must()
    for lock in lab.stored("SELECT id FROM locks WHERE ended IS NULL"):
        lab.testbed("lock", "release", lock, "--steal", "--reason", "the test is over")
    for owner in (ANN, BOB):
        lab.quick("down", "--yes", **owner).must()


def finished(process: subprocess.Popen[str]) -> Answer:
    out, err = process.communicate(timeout=110)
    return Answer(process.returncode, json.loads(out), err)


def locks(lab: Lab) -> list[dict[str, Any]]:
    return list(lab.testbed("lock", "list").must()["locks"])


def circuits(lab: Lab) -> dict[str, set[tuple[str, str]]]:
    return {device: pairs for device, pairs in lab.light().items() if pairs}


def at_work(lab: Lab) -> dict[str, Any]:
    """The lock of the run that holds something now, as soon as it does."""
    [name] = until(lab.holders)
    return {"id": name}


@contextmanager
def asleep(process: subprocess.Popen[str]) -> Iterator[None]:
    """The process does nothing meanwhile, and lives."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


@pytest.mark.long
def test_two_plans_on_disjoint_ports_run_at_the_same_time_on_the_same_devices(shared: Lab) -> None:
    lab = shared
    plans = (
        lab.plan("left", triangle("gpu01", "gpu02", "gpu03")),
        lab.plan("right", triangle("gpu04", "gpu05", "gpu06")),
    )
    first = lab.command("up", "--topology", plans[0], "--no-job", **ANN)
    second = lab.command("up", "--topology", plans[1], "--no-job", **BOB)
    for answer in (finished(first), finished(second)):
        answer.must()
    runs = {run["owner"]: run for run in lab.testbed("run", "list").must()["runs"][:2]}
    assert (
        runs["ann"]["started"] < runs["bob"]["ended"]
        and runs["bob"]["started"] < runs["ann"]["ended"]
    )
    assert sum(len(pairs) for pairs in lab.light().values()) == 12
    for plan, owner in zip(plans, (ANN, BOB), strict=True):
        again = lab.up(plan, "--no-job", **owner).must()
        assert again["nothing_to_do"] and not again["writes"]
    before, writes = circuits(lab), lab.writes()
    lab.testbed("down", "--yes", **ANN).must()
    assert sum(len(pairs) for pairs in lab.light().values()) == 6
    assert all(pairs <= before[device] for device, pairs in circuits(lab).items())
    assert lab.writes() != writes
    lab.testbed("verify", **BOB).must()


@pytest.mark.long
def test_who_needs_the_same_hosts_is_told_by_whom_they_are_held_or_waits(shared: Lab) -> None:
    lab = shared
    plans = (
        lab.plan("left", triangle("gpu01", "gpu02", "gpu03")),
        lab.plan("over", triangle("gpu03", "gpu04", "gpu05")),
    )
    began = len(lab.steps())
    first = lab.command("up", "--topology", plans[0], "--no-job", **ANN)
    at_work(lab)
    until(lambda: len(lab.steps()) > began)  # a login would run into its time-out asleep
    with asleep(first):
        answer = lab.up(plans[1], "--no-job", **BOB)
        [held] = locks(lab)
        waiting = lab.command("up", "--topology", plans[1], "--no-job", "--wait", "60s", **BOB)
        until(lambda: [lock["state"] for lock in locks(lab)] == ["active", "waiting"])
    assert answer.exit_code == 4 and answer.envelope["code"] == "E-LOCKED"
    output = answer.envelope["message"]
    assert (
        f"(pid {first.pid}) for ann since " in output
        and f": up left [lock {held['id']}]" in output
        and output.startswith("gpu03, ")
    )
    assert held["kind"] == "run" and held["pid"] == first.pid and held["run"].startswith("20")
    finished(first).must()
    answer = finished(waiting)  # its turn has come; now it is ann's plan that is in the way
    assert answer.exit_code == 9 and " of ann (left, run " in answer.envelope["message"]


def test_a_killed_holder_leaves_no_lock_and_his_plan_is_told_to_be_his(shared: Lab) -> None:
    lab = shared
    plan = lab.plan("left", triangle("gpu01", "gpu02", "gpu03"))
    first = lab.command("up", "--topology", plan, "--no-job", **ANN)
    held = at_work(lab)
    first.kill()
    first.communicate()
    assert locks(lab) == []
    record = next(
        r
        for r in lab.testbed("lock", "audit").must()["audit"]
        if r["subject"] == held["id"] and r["what"] == "died"
    )
    assert record["why"] == "its process is gone"
    lab.up(plan, "--no-job", **ANN).must()


def test_a_robbed_run_changes_nothing_more_and_its_hosts_listen_to_the_newer_one(
    shared: Lab,
) -> None:
    """The robbed one sleeps through the theft and the thief's whole change, and wakes up in the
    middle of his own.
    """
    lab = shared
    plans = (
        lab.plan("left", triangle("gpu01", "gpu02", "gpu03")),
        lab.plan("mine", triangle("gpu01", "gpu03", "gpu02")),
    )
    robbed = lab.command("up", "--topology", plans[0], "--no-job", **ANN)
    at_work(lab)
    with asleep(robbed):
        [held] = locks(lab)
        run = held["run"]
        refused = lab.testbed("lock", "release", held["id"], **BOB)
        assert refused.exit_code == 4 and "--steal" in refused.envelope["hint"]
        assert lab.testbed("lock", "release", held["id"], "--steal", **BOB).exit_code == 2
        lab.testbed("lock", "release", held["id"][:4], "--steal", "--reason", "x", **BOB)
        assert locks(lab)[0]["id"] == held["id"]  # the whole id, or nothing
        lab.testbed(
            "lock", "release", held["id"], "--steal", "--reason", "ann is at sea", **BOB
        ).must()
        lab.up(plans[1], "--no-job", **BOB).must()
        light = circuits(lab)
    answer = finished(robbed)
    assert answer.exit_code == 4, answer.envelope
    assert circuits(lab) == light
    lab.testbed("verify", **BOB).must()
    stolen = next(r for r in lab.testbed("lock", "audit").must()["audit"] if r["what"] == "stolen")
    assert (
        stolen["owner"] == "bob" and "up left" in stolen["why"] and "ann is at sea" in stolen["why"]
    )
    assert lab.testbed("run", "show", run, **ANN).must()["run"]["status"] in (
        "failed",
        "interrupted",
    )
    left = [record for record in lab.testbed("run", "list").must()["runs"] if record["id"] == run]
    assert left and left[0]["exit_code"] == 4


@pytest.mark.long
def test_a_reservation_keeps_others_out_and_its_owner_in(shared: Lab) -> None:
    lab = shared
    plan = lab.plan("left", triangle("gpu01", "gpu02", "gpu03"))
    made = lab.testbed(
        "lock", "reserve", "--hosts", "gpu02", "--for", "10m", "--reason", "demo day", **ANN
    ).must()["lock"]
    answer = lab.up(plan, "--no-job", **BOB)
    assert (
        answer.exit_code == 4
        and "is reserved by" in answer.envelope["message"]
        and "demo day" in answer.envelope["message"]
    )
    queued = lab.testbed(
        "lock",
        "reserve",
        "--hosts",
        "gpu02,gpu03",
        "--for",
        "5m",
        "--reason",
        "next",
        "--queue",
        **BOB,
    ).must()
    assert queued["lock"]["state"] == "waiting" and queued["behind"][0]["id"] == made["id"]
    lab.up(plan, "--no-job", **ANN).must()
    lab.testbed("down", "--yes", **ANN).must()
    assert lab.testbed("lock", "release", made["id"], **BOB).exit_code == 4
    lab.testbed("lock", "release", made["id"], **ANN).must()
    assert [(lock["owner"], lock["state"]) for lock in locks(lab)] == [("bob", "active")]
    after = lab.testbed(
        "lock", "reserve", "--for", "1m", "--reason", "all", "--after", queued["lock"]["id"], **ANN
    ).must()["lock"]
    assert (after["state"], after["message"]) == ("waiting", "the whole lab")
    assert lab.testbed("lock", "reserve", "--for", "1m", **ANN).exit_code == 2
    assert (
        lab.testbed(
            "lock", "reserve", "--ports", "ocs9:1", "--for", "1m", "--reason", "x", **ANN
        ).exit_code
        == 3
    )


@pytest.mark.long
def test_circuits_of_others_are_named_and_left_alone_unless_adopted(shared: Lab) -> None:
    lab = shared
    ours = lab.plan("pair", [("gpu01:p1", "gpu02:p1")])
    lab.up(lab.plan("theirs", [("gpu02:p1", "gpu03:p1")]), "--no-job", **ANN).must()
    light = circuits(lab)
    [device] = light
    answer = lab.up(ours, "--no-job", **BOB)
    assert answer.exit_code == 9 and answer.envelope["code"] == "E-INTERLOCK"
    output = answer.envelope["message"]
    assert " of ann (theirs, run " in output and circuits(lab) == light
    hint = answer.envelope["hint"]
    assert f'--adopt "{device}:' in hint
    assert lab.up(ours, "--yes", "--no-job", **BOB).exit_code == 9
    wrong = lab.up(ours, "--no-job", "--adopt", f"{device}:77->78", "--adopt", "owner:anne", **BOB)
    assert (
        wrong.exit_code == 2
        and "owner:ann?" in wrong.envelope["message"]
        and "77->78 does not exist" in wrong.envelope["message"]
    )
    named = [f"{device}:{a}->{b}" for a, b in sorted(light[device])]
    looked = lab.testbed(
        "plan", "--topology", ours, "--adopt", named[0], "--adopt", named[1], **BOB
    ).must()
    assert circuits(lab) == light and not looked["nothing_to_do"]
    answer = lab.up(ours, "--no-job", "--adopt", named[0], "--adopt", named[1], **BOB)
    assert (
        answer.exit_code == 9 and "gpu02 belongs to ann (theirs, run " in answer.envelope["message"]
    )
    done = lab.up(ours, "--no-job", "--adopt", "owner:ann", **BOB).must()
    assert any(note.startswith("adopted ") for note in done["notes"])
    assert circuits(lab) != light and len(circuits(lab)[device]) == 2
    assert lab.testbed("status", **ANN).must()["plan"] == ""
    audit = [r for r in lab.testbed("lock", "audit").must()["audit"] if r["what"] == "adopted"]
    assert {r["subject"] for r in audit} == {*named, "plan theirs"} and {
        r["owner"] for r in audit
    } == {"bob"}
    lab.testbed("verify", **BOB).must()


@pytest.mark.long
def test_a_circuit_that_nobody_owns_is_adopted_by_its_name_and_goes_with_the_next_plan(
    shared: Lab,
) -> None:
    lab = shared
    lab.up(lab.plan("theirs", [("gpu02:p1", "gpu03:p1")]), "--no-job", **ANN).must()
    [device] = circuits(lab)
    stranger = sorted(lab.light()[device])
    store = lab.folder / "data" / "testbed.sqlite3"
    lab.testbed("run", "list").must()
    aside = store.with_name("aside")
    aside.mkdir()
    for file in store.parent.glob("testbed.sqlite3*"):
        shutil.move(file, aside)
    try:  # with another store nobody knows whose they are
        plan = lab.plan("pair", [("gpu01:p1", "gpu02:p1")])
        answer = lab.up(plan, "--no-job", **BOB)
        assert (
            answer.exit_code == 9
            and "which" in answer.envelope["message"]
            and "ann" not in answer.envelope["message"]
        )
        argv = [w for a, b in stranger for w in ("--adopt", f"{device}:{a}->{b}")]
        lab.up(plan, "--no-job", *argv, **BOB).must()
        lab.testbed("down", "--yes", **BOB).must()
        assert circuits(lab) == {}
    finally:
        for file in store.parent.glob("testbed.sqlite3*"):
            file.unlink()
        for file in aside.iterdir():
            shutil.move(file, store.parent)
        aside.rmdir()


def test_no_light_moves_on_what_is_tagged_out_whatever_is_said(shared: Lab) -> None:
    lab = shared
    plan = lab.plan("left", triangle("gpu01", "gpu02", "gpu03"))
    tag = lab.testbed("tagout", "gpu02:p1", "--reason", "hands in rack", **ANN).must()["tagout"]
    writes = lab.writes()
    looked = lab.testbed("plan", "--topology", plan, **BOB).must()
    assert any("would be refused: gpu02:p1 is tagged out by" in note for note in looked["notes"])
    answer = lab.up(plan, "--yes", "--no-job", **BOB)
    assert (
        answer.exit_code == 9
        and "hands in rack" in answer.envelope["message"]
        and tag["id"] in answer.envelope["message"]
    )
    assert lab.writes() == writes
    assert any("hands in rack" in line for line in lab.testbed("status").must()["tagged"])
    elsewhere = lab.plan("right", triangle("gpu04", "gpu05", "gpu06"))
    lab.up(elsewhere, "--no-job", **BOB).must()
    refused = lab.testbed("tagout", "remove", "gpu02:p1", **BOB)
    assert refused.exit_code == 9 and "--steal" in refused.envelope["hint"]
    lab.testbed("tagout", "remove", "gpu02:p1", **ANN).must()
    lab.up(
        lab.plan("all", [*triangle("gpu04", "gpu05", "gpu06"), ("gpu01:p1", "gpu02:p1")]),
        "--no-job",
        **BOB,
    ).must()
    device = next(d for d, pairs in circuits(lab).items() if len(pairs) == 4)
    lab.testbed("tagout", device, "--reason", "new firmware", **ANN).must()
    for argv in (["down", "--yes"], ["rollback", "--yes"]):
        answer = lab.testbed(*argv, **BOB)
        assert answer.exit_code == 9 and "new firmware" in answer.envelope["message"], (
            answer.envelope
        )
    assert lab.up(elsewhere, "--no-job", **BOB).exit_code == 9
    assert len(circuits(lab)[device]) == 4


@pytest.mark.long
def test_a_tag_hung_while_a_change_goes_wrong_is_left_for_hands(shared: Lab) -> None:
    lab = shared
    plan = lab.plan("left", triangle("gpu01", "gpu02", "gpu03"))
    devices = sorted(lab.light())
    lab.ask("faults.add", device=devices[2], kind="refuse", on="write", count=1)
    running = lab.command("up", "--topology", plan, "--no-job", **BOB)
    until(lambda: circuits(lab))
    tagged = lab.testbed(
        "tagout", next(iter(circuits(lab))), "--reason", "hands in rack", **ANN
    ).must()
    assert [lock["pid"] for lock in tagged["busy"]] in ([running.pid], [])
    answer = finished(running)
    if answer.exit_code == 7:  # it hung before the change was taken back
        assert "hands in rack" in answer.envelope["message"]
        assert circuits(lab)
    else:
        assert answer.exit_code == 6 and not circuits(lab)


@pytest.mark.long
def test_more_light_than_a_port_bears_is_refused(shared: Lab, tmp_path: Path) -> None:
    lab = shared
    inventory = tmp_path / "inventory"
    shutil.copytree(lab.inventory, inventory)
    devices = yaml.safe_load((inventory / "devices.yml").read_text())
    plan = lab.plan("pair", [("gpu01:p1", "gpu02:p1")])
    lab.up(plan, "--no-job", **ANN).must()
    [name] = circuits(lab)
    lab.testbed("down", "--yes", **ANN).must()
    devices["devices"][name]["max_input_dbm"] = -20.0
    (inventory / "devices.yml").write_text(yaml.safe_dump(devices, sort_keys=False))
    answer = lab.up(plan, "--yes", "--no-job", "--inventory", str(inventory), **ANN)
    assert (
        answer.exit_code == 9
        and f"{name}:" in answer.envelope["message"]
        and "tolerates -20 dBm" in answer.envelope["message"]
    )
    assert not circuits(lab)
    devices["devices"][name]["max_input_dbm"] = 20.0
    (inventory / "devices.yml").write_text(yaml.safe_dump(devices, sort_keys=False))
    lab.up(plan, "--no-job", "--inventory", str(inventory), **ANN).must()


# --- two users of one machine

UIDS = {"ann": 61001, "bob": 61002, "eve": 61003}
GROUP = 61000


def as_users_see_it(folder: Path) -> list[str]:
    """Words before a command: for it alone the machine knows the users of `folder`, and they may
    run this very interpreter.

    Where that lies in somebody's closed home, the home is replaced by an open one with nothing but
    the interpreter's part in it.
    """
    steps = [f"mount --bind {folder / name} /etc/{name}" for name in ("passwd", "group")]
    real = Path(sys.executable).resolve()
    closed = next(
        (parent for parent in reversed(real.parents) if not parent.stat().st_mode & 0o001), None
    )
    if closed is not None:
        part = closed / real.relative_to(closed).parts[0]
        steps += [
            f"mount -t tmpfs none /mnt && mkdir /mnt/part && mount --bind {part} /mnt/part",
            f"mount -t tmpfs -o mode=755 none {closed} && mkdir {part} && mount --bind /mnt/part {part}",
        ]
    return [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        " && ".join([*steps, 'exec "$@"']),
        "sh",
    ]


class Users:
    """Made-up users of this machine, two of them in the lab's group; each with a home and a copy of
    the inventory.
    """

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.store = folder / "store"
        self.store.mkdir()
        os.chown(self.store, 0, GROUP)
        self.store.chmod(0o2770)
        (folder / "locks").mkdir()
        os.chown(folder / "locks", 0, GROUP)
        (folder / "locks").chmod(0o2770)
        users = [f"{name}:x:{uid}:{uid}::{folder / name}:/bin/sh\n" for name, uid in UIDS.items()]
        (folder / "passwd").write_text(Path("/etc/passwd").read_text() + "".join(users))
        (folder / "group").write_text(Path("/etc/group").read_text() + f"optics:x:{GROUP}:\n")
        for name, uid in UIDS.items():
            home = folder / name
            shutil.copytree(lab.inventory, home / "inventory")
            (home / "inventory" / "emulator.yml").unlink(missing_ok=True)  # to them it is hardware
            hosts = (home / "inventory" / "hosts.yml").read_text()
            key = next(
                word
                for line in hosts.splitlines()
                if "private_key_file" in line
                for word in [line.split(": ", 1)[1].strip().strip('"')]
            )
            known = lab.folder / "lab"
            for file in known.glob("*"):
                if file.is_file() and not file.name.endswith(".sock"):
                    shutil.copy(file, home / file.name)
            (home / "inventory" / "hosts.yml").write_text(
                hosts.replace(str(Path(key).parent), str(home))
            )
            for path in (home, *home.rglob("*")):
                os.chown(path, uid, uid)
                path.chmod(0o700 if path.is_dir() else 0o600)

    def run(self, name: str, *argv: str | Path, **env: str) -> subprocess.Popen[str]:
        home, uid = self.folder / name, UIDS[name]
        groups = f"--groups={GROUP}" if name != "eve" else "--clear-groups"
        places = {
            "HOME": str(home),
            "TESTBED_STORE": str(self.store),
            "TESTBED_LOCK_DIR": str(self.folder / "locks"),
            "TESTBED_INVENTORY": str(home / "inventory"),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "LANG": "C.UTF-8",
        }
        return subprocess.Popen(
            [
                *as_users_see_it(self.folder),
                "setpriv",
                f"--reuid={uid}",
                f"--regid={uid}",
                groups,
                TESTBED,
                *map(str, argv),
                "--json",
            ],
            env=places | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=home,
        )

    def testbed(self, name: str, *argv: str | Path, **env: str) -> Answer:
        return finished(self.run(name, *argv, **env))

    def plan(self, lab: Lab, name: str, links: list[tuple[str, str]]) -> Path:
        path = self.folder / f"{name}.json"
        shutil.copy(lab.plan(name, links), path)
        path.chmod(0o644)
        return path


@pytest.fixture
def users(lab: Lab) -> Iterator[Users]:
    if os.geteuid() != 0:
        pytest.skip("becoming other users needs root")
    folder = Path("/tmp") / f"testbed-users-{os.getpid()}"
    folder.mkdir()
    try:
        made = Users(lab, folder)
        yield made
        for name in ("ann", "bob"):
            made.testbed(name, "down", "--yes")
    finally:
        shutil.rmtree(folder)


@pytest.mark.long
def test_two_users_share_a_lab_through_one_store(lab: Lab, users: Users) -> None:
    left = users.plan(lab, "left", triangle("gpu01", "gpu02", "gpu03"))
    right = users.plan(lab, "right", triangle("gpu04", "gpu05", "gpu06"))
    over = users.plan(lab, "over", triangle("gpu03", "gpu04", "gpu05"))
    first, second = (
        users.run("ann", "up", "-t", left, "--no-job"),
        users.run("bob", "up", "-t", right, "--no-job"),
    )
    until(
        lambda: len(users.testbed("bob", "lock").must()["locks"]) == 2 or first.poll() is not None
    )
    modes = {
        path.name: (path.stat().st_mode & 0o7777, path.stat().st_gid)
        for path in users.store.iterdir()
    }
    assert set(modes) >= {"testbed.sqlite3", "testbed.sqlite3-wal", "testbed.sqlite3-shm"}
    assert set(modes.values()) == {(0o660, GROUP)}, modes
    finished(first).must()
    finished(second).must()
    assert {run["user"] for run in users.testbed("bob", "run", "list").must()["runs"]} == {
        "ann",
        "bob",
    }
    refused = users.testbed("bob", "up", "-t", over, "--no-job")
    assert refused.exit_code == 9 and " of ann (left, run " in refused.envelope["message"]
    users.testbed(
        "ann", "lock", "reserve", "--hosts", "gpu01", "--for", "10m", "--reason", "mine"
    ).must()
    assert [lock["user"] for lock in users.testbed("bob", "lock").must()["locks"]] == ["ann"]
    users.testbed("ann", "down", "--yes").must()
    assert sum(len(pairs) for pairs in lab.light().values()) == 6
    users.testbed("bob", "verify").must()


@pytest.mark.long
def test_a_store_is_opened_by_its_group_alone(lab: Lab, users: Users) -> None:
    users.testbed("ann", "run", "list").must()
    outside = users.testbed("eve", "run", "list")
    assert (
        outside.exit_code == 2 and "only members of group optics may" in outside.envelope["message"]
    )
    users.store.chmod(0o2777)
    everybody = users.testbed("ann", "run", "list")
    assert everybody.exit_code == 2 and everybody.envelope["code"] == "E-UNSAFE-STORE"
    assert everybody.envelope["hint"] == f"chmod 2770 {users.store}"
    users.store.chmod(0o770)
    assert (
        "cannot share files created there"
        in users.testbed("ann", "run", "list").envelope["message"]
    )
    users.store.chmod(0o2770)
    missing = users.testbed("ann", "run", "list", TESTBED_STORE=str(users.folder / "none"))
    assert missing.exit_code == 2 and "install -d -m 2770" in missing.envelope["hint"]


@pytest.mark.long
def test_a_user_with_a_store_of_his_own_does_not_meet_others_unawares(
    lab: Lab, users: Users
) -> None:
    left = users.plan(lab, "left", triangle("gpu01", "gpu02", "gpu03"))
    running = users.run("ann", "up", "-t", left, "--no-job")
    until(lambda: users.testbed("bob", "lock").must()["locks"])
    own = users.folder / "bob" / "own"
    with asleep(running):
        answer = users.testbed(
            "bob", "up", "-t", left, "--no-job", TESTBED_STORE="", TESTBED_DATA_DIR=str(own)
        )
    finished(running).must()
    assert (
        answer.exit_code == 4
        and f"with another store, {users.store}/testbed.sqlite3" in answer.envelope["message"]
    )
    assert "share-a-lab.md" in answer.envelope["hint"]


@pytest.mark.long
def test_a_store_that_others_may_write_is_refused_unless_it_is_declared_shared(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir()

    def history() -> Answer:
        env = os.environ | {
            "TESTBED_DATA_DIR": str(data),
            "TESTBED_INVENTORY": str(ROOT / "inventory" / "emulated"),
        }
        done = subprocess.run(
            [TESTBED, "run", "list", "--json"], env=env, capture_output=True, text=True, cwd=ROOT
        )
        return Answer(done.returncode, json.loads(done.stdout), done.stderr)

    data.chmod(0o770)
    answer = history()
    assert answer.exit_code == 2 and answer.envelope["code"] == "E-UNSAFE-STORE"
    assert f"chmod go-w {data}" in answer.envelope["hint"] and "`store`" in answer.envelope["hint"]
    data.chmod(0o755)
    history().must()
    (data / "testbed.sqlite3").chmod(0o666)
    assert "others may write the store" in history().envelope["message"]
    (data / "testbed.sqlite3").chmod(0o644)
    history().must()
    assert (data / "testbed.sqlite3").stat().st_mode & 0o777 == 0o600
