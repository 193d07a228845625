"""The agent and programs of the lab's owner: it takes files, checks what they need, and as whom
they may run.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import os
import pwd
import tarfile
from typing import Any

import pytest

from tests.agent.space import Peer, Space, facts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

NOBODY = pwd.getpwnam("nobody").pw_uid


def tar(**files: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o755 if name.endswith(".sh") else 0o600
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def put(peer: Peer, content: bytes, digest: str = "", **more: Any) -> dict[str, Any]:
    data = base64.b64encode(gzip.compress(content)).decode()
    fields = {
        "files": digest or hashlib.sha256(content).hexdigest(),
        "offset": 0,
        "data": data,
        "last": True,
    }
    return peer.ask("job.files", **(fields | more))


def inside(host: Space, script: str) -> str:
    done = host.run("sh", "-c", script)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_files_come_in_pieces_belong_to_root_and_everybody_may_read_them(
    host: Space, peer: Peer
) -> None:
    content = tar(**{"run.sh": "#!/bin/sh", "package/deep/a.py": "x = 1"})
    digest = hashlib.sha256(content).hexdigest()
    assert peer.ask("job.ready", program="p", files=digest)["files"] is False
    packed = gzip.compress(content)
    for offset in range(0, len(packed), 50):
        piece = base64.b64encode(packed[offset : offset + 50]).decode()
        answer = peer.ask(
            "job.files", files=digest, offset=offset, data=piece, last=offset + 50 >= len(packed)
        )
        assert answer["ok"], answer
    assert peer.ask("job.ready", program="p", files=digest)["files"] is True
    seen = inside(host, f"cd /run/var/programs/{digest} && find . -printf '%u %m %p\\n' | sort")
    assert seen.splitlines() == sorted(
        [
            "root 755 .",
            "root 755 ./package",
            "root 755 ./package/deep",
            "root 644 ./package/deep/a.py",
            "root 755 ./run.sh",
        ]
    )
    assert inside(host, "ls /run/var/programs").split() == [digest], "no piece is left"


def test_pieces_out_of_order_other_content_and_names_that_lead_elsewhere_are_refused(
    host: Space, peer: Peer
) -> None:
    content = tar(a="1")
    assert "begins at 7" in put(peer, content, offset=7)["error"]
    assert "not those of digest" in put(peer, content, digest="0" * 64)["error"]
    assert "SHA-256 in hexadecimal" in put(peer, content, digest="../../etc")["error"]
    assert "base64" in put(peer, content, data="!")["error"]
    for name in ("../../../tmp/out", "/tmp/out", "a/../../b", "./a", "a//b"):
        assert "is no plain file below the directory" in put(peer, tar(**{name: "x"}))["error"], (
            name
        )
    link = io.BytesIO()
    with tarfile.open(fileobj=link, mode="w") as archive:
        entry = tarfile.TarInfo("a")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc"
        archive.addfile(entry)
    assert "is no plain file" in put(peer, link.getvalue())["error"]
    bomb = gzip.compress(b"\0" * (64 << 20))
    assert (
        "more than 41943040 bytes" in put(peer, b"", data=base64.b64encode(bomb).decode())["error"]
    )
    assert "." not in inside(host, "ls /run/var/programs"), "nothing unfinished is left"


def test_a_directory_that_is_missing_is_named_before_anything_starts(peer: Peer) -> None:
    answer = peer.ask("job.ready", program="gpt", paths=["/usr", "/opt/no-such"])
    assert not answer["ok"] and answer["code"] == "refused"
    assert (
        "program gpt needs the directory /opt/no-such, which is not on this host" in answer["error"]
    )
    assert peer.ask("job.ready", program="gpt", paths=["/usr"])["files"] is None


ALONE = """import os, sys, time
if not os.fork():
    os.setsid()
    open("alone", "w").write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists("alone"):
    time.sleep(0.01)
time.sleep(float(sys.argv[1]))
"""
ENDED = "for k in $(seq 600); do ps -o stat= -p {} | grep -qv Z || exit 0; sleep 0.05; done; exit 1"


@pytest.mark.parametrize(
    "how", ["stopped", "ends by itself", "stopped once it has ended", "launched again"]
)
def test_a_child_in_a_session_of_its_own_ends_with_its_job_and_others_stay(
    host: Space, peer: Peer, how: str
) -> None:
    peers = {
        name: peer.ask("job.start", name=name, argv=["python3", "-c", ALONE, "600"])
        for name in ("mine", "other")
    }
    if how != "stopped":
        peer.ask("job.stop", name="mine", grace_s=0)
        peers["mine"] = peer.ask("job.start", name="mine", argv=["python3", "-c", ALONE, "0.2"])
    place = (
        "for k in $(seq 600); do [ -s {0}/alone ] && exec cat {0}/alone; sleep 0.05; done; exit 1"
    )
    mine, other = (
        inside(host, place.replace("{0}", peers[name]["directory"])) for name in ("mine", "other")
    )
    copy = inside(
        host,
        f"TESTBED_JOB_DIR={peers['mine']['directory']} setpriv --reuid {NOBODY} sleep 600 >/dev/null 2>&1 & echo $!",
    )
    try:
        if how == "stopped":
            peer.ask("job.stop", name="mine", grace_s=0)
        else:
            inside(host, ENDED.format(peers["mine"]["pid"]))
            if how == "stopped once it has ended":
                peer.ask("job.stop", name="mine")
            elif how == "launched again":
                peer.ask("job.start", name="mine", argv=["sleep", "600"])
        inside(host, ENDED.format(mine))
        assert inside(host, f"ps -o stat= -p {other},{copy.strip()}").split(), (
            "another job's, and another user's, stay"
        )
    finally:
        inside(host, f"kill -9 {copy.strip()} || true")
        for name in peers:
            peer.ask("job.stop", name=name, grace_s=0)


def test_only_users_that_provisioning_names_run_programs_and_all_of_the_session_is_stopped(
    host: Space, peer: Peer
) -> None:
    for name in ("daemon", "nobody", "no-such-user", 0, ["nobody"]):
        for op in ("job.ready", "job.start"):
            answer = peer.ask(op, program="p", name="j", argv=["id"], user=name)
            assert "is not among those that provisioning lets programs run as" in answer["error"], (
                op,
                name,
            )
    known = facts("gpu01", 1, 2) | {
        "job_user": "daemon",
        "job_users": ["nobody", "no-such-user"],
        "sha": "other",
    }
    host.agent("provision", known)
    peer.ask("reload")
    try:
        assert (
            "no user no-such-user on this host"
            in peer.ask("job.ready", program="p", user="no-such-user")["error"]
        )
        assert peer.ask("job.ready", program="p", user="nobody")["ok"]
        assert (
            "is not among those"
            in peer.ask("job.start", name="j", argv=["id"], user="root")["error"]
        )
        script = 'id -u >uid; python3 -c \'import os, time; os.setpgid(0, 0); open("own", "w"); time.sleep(600)\' & sleep 600'
        started = peer.ask("job.start", name="j", argv=["sh", "-c", script], user="nobody")
        directory = started["directory"]
        inside(
            host,
            f"for k in $(seq 600); do [ -e {directory}/own ] && exit; sleep 0.05; done; exit 1",
        )
        assert inside(host, f"cat {directory}/uid").strip() == str(NOBODY)
        assert peer.ask("job.stop", name="j", grace_s=5)["state"] != "running"
        inside(
            host,
            f"for k in $(seq 600); do ps -o stat= -s {started['pid']} | grep -qv Z || exit 0; sleep 0.05; done; exit 1",
        )
    finally:
        host.agent("provision", facts("gpu01", 1, 2))
        peer.ask("reload")
