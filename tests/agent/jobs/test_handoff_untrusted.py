"""The hand-off socket against what a job may send and what another user may try."""

from __future__ import annotations

import json
import os
import pwd
import socket
import stat
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.jobs import handoff, job_socket
from agent.jobs.rank import checked
from tests.agent.ranks import Job
from tests.agent.space import Peer, Space, facts
from tests.kit.waiting import until

GOOD: dict[str, Any] = {"rank": 9, "world": 16, "move": 0, "state": "idle", "iteration": 0}
TALK = """
def connected():
    link = socket.socket(socket.AF_UNIX)
    while link.connect_ex(os.environ["TESTBED_HANDOFF"]):
        time.sleep(0.02)
    return link

def say(link, data):
    try:
        link.sendall(data)
    except OSError:  # the agent was faster
        pass

def ended(link):
    try:
        while link.recv(65536):
            pass
    except OSError:
        pass
"""


def script(body: str, **values: object) -> str:
    """Code for EXTRA: `body` in a thread of the job, which marks its end by a file `done`."""
    lines = (
        [f"{key} = {value!r}" for key, value in values.items()]
        + body.strip().splitlines()
        + ["open(folder + '/done', 'w')"]
    )
    return (
        TALK
        + "def extra():\n"
        + "".join(f"    {line}\n" for line in lines)
        + "threading.Thread(target=extra, daemon=True).start()"
    )


@pytest.fixture
def job_user(host: Space, peer: Peer) -> Iterator[pwd.struct_passwd]:
    """Jobs run as the user that every machine has for daemons, which is not nobody."""
    plain = facts("gpu01", 1, 2)
    host.agent("provision", plain | {"job_user": "daemon"})
    peer.ask("reload")
    yield pwd.getpwnam("daemon")
    host.agent("provision", plain)
    host.agent("call", {"op": "reload"})


def base(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:16]


def inside(host: Space, path: str) -> Path:
    return Path(f"/proc/{host.pid}/root{path}")


def stranger(host: Space, code: str, *argv: str, user: int = 65534) -> str:
    ids = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]
    done = host.run(*ids, "/usr/bin/env", "python3", "-S", "-E", "-c", code, *argv)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- what a rank sends


def line(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"x",
        b"[]",
        b"7",
        b"\xff\xfe\x00",
        b"[" * 15000,
        b'{"rank":' + b"9" * 15000,
        b'{"rank":' + b"9" * 15000 + b"}",
        b"{}",
        line(rank=-1),
        line(rank=1 << 16),
        line(rank="0"),
        line(rank=True),
        line(rank=1.0),
        line(move=-1),
        line(move=1 << 54),
        line(move=None),
        line(state=None),
        line(state=7),
        line(state="x" * 17),
        line(state="held\n"),
        line(state="h\u00e9ld"),
        line(iteration=-2),
        line(iteration=1e3),
        line(after="7"),
        line(t_ns=1 << 63),
        line(took_ms=-1),
        line(took_ms=True),
        line(stall_ms=[1]),
        line(held_ms=float("nan")),
        line(held_ms=float("inf")),
        b'{"rank":1,"move":0,"state":"idle","took_ms":1e999}',
    ],
)
def test_what_is_not_as_the_page_says_is_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError):
        checked(wrong)


def test_unknown_fields_are_left_out_and_words_are_made_printable() -> None:
    reported = checked(
        line(
            error="a\x1b[2J\nb\ud800" + "x" * 1000,
            event="committed",
            ok=True,
            name="other",
            silent_s=3,
            id=1,
        )
    )
    assert reported == {**GOOD, "error": ("a [2J b " + "x" * 1000)[:500]}


GARBAGE = """
for junk in junks:
    link = connected()
    say(link, junk.encode("latin1"))
    ended(link)
"""


@pytest.mark.lab
def test_garbage_ends_a_connection_and_nothing_else(start: Callable[..., Job]) -> None:
    good = line().decode() + "\n"
    junks = [
        "\n",
        "what?\n",
        "x" * 20000,
        good + "x" * 20000 + "\n",
        good + line(rank=8).decode() + "\n",
        good + good + "\x00\n" + good,
        line(rank=9, world=9).decode() + "\n",
        line(world=None).decode() + "\n",
        "\n" * 30000,
    ]
    job = start(EXTRA=script(GARBAGE, junks=junks)).connected()
    until((job.folder / "done").exists, 60)
    seen = job.ask("ring_changes")
    assert [row["rank"] for row in seen["ranks"]] == [0, 1] and seen["cut_off"] == "not a JSON line"
    assert [row["state"] for row in job.ask("prepare", move=1, lease_s=60)["ranks"]] == [
        "prepared",
        "prepared",
    ]


FLOOD = """
link = connected()
link.sendall(good)
try:
    while True:
        for state in (b"held", b"prepared"):
            link.sendall(b'{"rank":9,"move":1,"state":"%s"}\\n' % state)
except OSError:
    pass
"""


@pytest.mark.lab
def test_a_rank_that_floods_is_cut_off(start: Callable[..., Job], host: Space, peer: Peer) -> None:
    job = start(
        RANKS="0",
        EXTRA=script(
            "while not os.path.exists(folder + '/flood'): time.sleep(0.01)\n" + FLOOD,
            good=line() + b"\n",
        ),
    )
    job.ask("prepare", move=1, lease_s=60)
    other = host.attach()
    (job.folder / "flood").touch()
    until((job.folder / "done").exists, 60)
    seen = job.ask("ring_changes")
    assert (seen["ranks"], seen["cut_off"]) == ([], "rank 9: too many messages")
    assert 0 < len([e for e in peer.events if e["event"] == "ring_change"]) < 2000
    assert other.ask("hello")["ok"]


DEAF = """
link = connected()
link.sendall(good)
while not os.path.exists(folder + "/read"):
    time.sleep(0.01)
ended(link)
"""


@pytest.mark.lab
def test_a_rank_that_stops_reading_is_cut_off(start: Callable[..., Job]) -> None:
    job = start(EXTRA=script(DEAF, good=line() + b"\n")).connected(3)
    rings = [["x" * 1000] * 1000]
    for move in range(1, 8):
        job.ask("prepare", move=move, lease_s=60, within_s=0, rings=rings)
        job.gets("prepare", move, 0)
        job.gets("prepare", move, 1)
    until(lambda: [row["rank"] for row in job.rows()] == [0, 1])
    (job.folder / "read").touch()
    until((job.folder / "done").exists)


CROWD = """
while not os.path.exists(folder + "/crowd"):
    time.sleep(0.01)
links = [connected() for _ in range(70)]
while not os.path.exists(folder + "/leave"):
    time.sleep(0.01)
for link in links:
    link.close()
for _ in range(130):
    connected().close()
"""


@pytest.mark.lab
def test_a_job_cannot_take_all_connections_of_the_agent(
    start: Callable[..., Job], peer: Peer
) -> None:
    job = start(EXTRA=script(CROWD)).connected()
    (job.folder / "crowd").touch()  # not before: its own ranks would find no connection left
    until(lambda: job.ask("ring_changes")["cut_off"] == "more than 64 connections")
    (job.folder / "leave").touch()
    until((job.folder / "done").exists, 90)
    assert [row["rank"] for row in job.rows()] == [0, 1]
    assert start("other").connected().ask("prepare", move=1, lease_s=60)["ok"]


TWICE = """
first, second = connected(), connected()
say(first, good)
say(second, good)
ended(first)
open(folder + "/replaced", "w")
ended(second)
"""


@pytest.mark.lab
def test_a_later_connection_of_a_rank_replaces_the_earlier_one(start: Callable[..., Job]) -> None:
    job = start(EXTRA=script(TWICE, good=line() + b"\n")).connected(3)
    until((job.folder / "replaced").exists)
    assert [row["rank"] for row in job.rows()] == [0, 1, 9]


# --- other jobs, other users


OTHERS = """
import os, socket, sys
def tried(action):
    try:
        action()
        print("done")
    except PermissionError:
        print("denied")
    except OSError as error:
        print(type(error).__name__)
folder, name = sys.argv[1:3]
path = folder + "/" + name
tried(lambda: socket.socket(socket.AF_UNIX).connect(path))
tried(lambda: os.listdir(folder))
tried(lambda: os.unlink(path))
tried(lambda: os.rename(path, path + "x"))
tried(lambda: os.symlink("/etc/shadow", folder + "/x"))
tried(lambda: os.chmod(path, 0o777))
tried(lambda: socket.socket(socket.AF_UNIX).bind(folder + "/y"))
tried(lambda: os.mkdir(folder + "/z"))
"""


@pytest.mark.lab
def test_another_user_of_the_host_can_do_nothing_to_the_sockets(
    start: Callable[..., Job], host: Space, job_user: pwd.struct_passwd
) -> None:
    start().connected()
    output = stranger(host, OTHERS, "/run/var/ring_changes", base("j"))
    assert output.split() == ["denied"] * 8
    found = inside(host, "/run/var/ring_changes/" + base("j")).stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (job_user.pw_uid, 0o600)
    output = stranger(host, OTHERS, "/run/var/ring_changes", base("j"), user=job_user.pw_uid)
    assert output.split() == [
        "done",
        "denied",
        "denied",
        "denied",
        "denied",
        "done",
        "denied",
        "denied",
    ]


SPEAK = """
import socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
try:
    link.sendall(sys.argv[2].encode() + b"\\n")
    print(link.recv(100))
except OSError:
    print(b"")
"""


@pytest.mark.lab
@pytest.mark.parametrize(
    "who", ["job_user", "root", "another job", "a session of its own", "nobody"]
)
def test_only_processes_of_the_job_are_its_ranks(
    start: Callable[..., Job], host: Space, job_user: pwd.struct_passwd, who: str
) -> None:
    claim = line(rank=1, world=2, move=1, state="changed").decode()
    path = "/run/var/ring_changes/" + base("j")
    own = "if not os.fork():\n    os.setsid()\n    link = connected()\n    ended(link)\n    os._exit(0)\nos.wait()"
    job = start(EXTRA=script(own) if who == "a session of its own" else "").connected()
    if who == "another job":
        body = "link = connected()\nsay(link, good)\nended(link)"
        extra = script(body, good=claim.encode() + b"\n").replace(
            'os.environ["TESTBED_HANDOFF"]', repr(path)
        )
        until((start("other", RANKS="0", EXTRA=extra).folder / "done").exists)
    elif who == "a session of its own":
        until((job.folder / "done").exists)
    else:
        if who == "nobody":  # even where it could open the socket
            inside(host, path).chmod(0o666)
        uid = {"job_user": job_user.pw_uid, "root": 0, "nobody": 65534}[who]
        assert stranger(host, SPEAK, path, claim, user=uid) == "b''\n"
    seen = job.ask("ring_changes")
    assert [(row["rank"], row["state"]) for row in seen["ranks"]] == [(0, "idle"), (1, "idle")]
    why = "is of user 65534, not of the job's" if who == "nobody" else "is of session "
    assert why in seen["cut_off"]


@pytest.mark.lab
def test_what_lies_in_place_of_a_socket_is_neither_followed_nor_given_away(
    start: Callable[..., Job], host: Space, job_user: pwd.struct_passwd
) -> None:
    folder, treasure = inside(host, "/run/var/ring_changes"), inside(host, "/run/treasure")
    treasure.write_text("ours")
    treasure.chmod(0o600)
    (folder / base("link")).symlink_to("/run/treasure")
    (folder / base("hard")).hardlink_to(treasure)
    (folder / base("folder")).mkdir()
    for name in ("link", "hard"):
        start(name).connected()
    assert (
        start("folder").ask("ring_changes")["error"]
        == "job folder does not run here, or has no hand-off socket"
    )
    assert treasure.read_text() == "ours" and (
        treasure.stat().st_uid,
        stat.S_IMODE(treasure.stat().st_mode),
    ) == (0, 0o600)
    assert (folder / base("folder")).is_dir() and (folder / base("folder")).stat().st_uid == 0
    (folder / base("folder")).rmdir()


@pytest.mark.lab
@pytest.mark.parametrize("loose", ["owner", "mode", "link"])
def test_a_directory_that_others_may_write_holds_no_socket(
    start: Callable[..., Job], host: Space, job_user: pwd.struct_passwd, loose: str
) -> None:
    folder, other = inside(host, "/run/var/ring_changes"), inside(host, "/run/other")
    other.mkdir()
    (other / base("j")).touch()
    (other / "theirs").touch()
    folder.rename(folder.with_name("kept"))
    try:
        if loose == "link":
            folder.symlink_to("../other")
        else:
            other.rename(folder)
            os.chown(folder, *((65534, 65534) if loose == "owner" else (0, 0)))
            folder.chmod(0o777 if loose == "mode" else 0o711)
        job = start()
        assert (
            job.ask("ring_changes")["code"] == "refused" and job.ask("status")["state"] == "running"
        )
        job.end()
        assert (
            (folder / base("j")).is_file()
            and (folder / base("j")).stat().st_uid == 0
            and (folder / "theirs").exists()
        )
    finally:
        if folder.is_symlink():
            folder.unlink()
            folder = other
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        inside(host, "/run/var/kept").rename(inside(host, "/run/var/ring_changes"))


def test_the_path_of_a_socket_may_be_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir(mode=0o711)
    monkeypatch.setattr(handoff, "FOLDER", str(folder))
    made = handoff.Handoff(SimpleNamespace())  # type: ignore[arg-type]
    listener = job_socket.bound(str(folder), "0123456789abcdef", os.getuid(), os.getgid())
    found = os.open(folder, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(f"/proc/self/fd/{found}/0123456789abcdef")
            listener.accept()[0].close()
    finally:
        os.close(found)
        listener.close()
    assert len(Path(made.path("n" * 100)).name) == 16
