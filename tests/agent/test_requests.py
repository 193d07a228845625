"""What the committer answers to requests it cannot serve, and how it keeps jobs."""

from __future__ import annotations

import json
import pwd
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optics import HostPort
from orchestrator.hosts import HostEvent, counter_samples
from tests.agent.space import AGENT, Peer, Space, facts

pytestmark = pytest.mark.lab


def ended(peer: Peer, name: str, limit_s: float = 5.0) -> dict[str, Any]:
    end = time.monotonic() + limit_s
    while (state := peer.ask("job.status", name=name))["state"] == "running":
        assert time.monotonic() < end, state
        time.sleep(0.01)
    return state


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        (b"what?", "bad-request", "not a JSON line"),
        (b"[1]", "bad-request", "a request is a JSON object"),
        (b'{"id":1,"op":"fly"}', "unknown-op", "unknown op 'fly'; this agent knows adopt, arm"),
        (b'{"id":1,"op":["hello"]}', "unknown-op", "unknown op ['hello']"),
        (
            b'{"id":1,"op":"commit"}',
            "bad-request",
            "generation: a whole number >= 1 is needed, got None",
        ),
        (b'{"id":1,"op":"commit","generation":true}', "bad-request", "got True"),
        (
            b'{"id":1,"op":"commit","generation":4}',
            "refused",
            "generation 4 is not staged here (staged: none)",
        ),
        (
            b'{"id":1,"op":"commit","generation":1,"revert_after_s":-1}',
            "bad-request",
            "revert_after_s: seconds from 0 to 86400",
        ),
        (
            b'{"id":1,"op":"stage","generation":1,"routes":[["10.255.0.2"]]}',
            "bad-request",
            "routes[0]",
        ),
        (
            b'{"id":1,"op":"stage","generation":1,"routes":[["x/32","10.1.0.2","opt1","10.255.0.1"]]}',
            "bad-request",
            "rules of generation 1",
        ),
        (
            b'{"id":1,"op":"stage","generation":1,"neighbours":[["10.1.0.2","zz","opt1"]]}',
            "bad-request",
            "rules of generation 1",
        ),
        (
            b'{"id":1,"op":"stage","packed":"what?"}',
            "bad-request",
            "packed: not JSON, gzipped, in base64",
        ),
        (
            b'{"id":1,"op":"stage","packed":7}',
            "bad-request",
            "packed: not JSON, gzipped, in base64",
        ),
        (
            b'{"id":1,"op":"arm","generation":1,"when_up":[]}',
            "bad-request",
            "with nothing to wait for use commit",
        ),
        (b'{"id":1,"op":"arm","generation":1,"when_up":["opt9"]}', "refused", "no interface opt9"),
        (
            b'{"id":1,"op":"probe","targets":["10.255.0.2"]}',
            "bad-request",
            "a list of {address, hops} is needed",
        ),
        (
            b'{"id":1,"op":"neighbours","ports":[9]}',
            "bad-request",
            "[9] are not ports of this host",
        ),
        (
            b'{"id":1,"op":"job.start","name":"../x","argv":["true"]}',
            "bad-request",
            "name: letters, digits",
        ),
        (
            b'{"id":1,"op":"job.start","name":"x","argv":"true"}',
            "bad-request",
            "argv: a list of words is needed",
        ),
        (b'{"id":1,"op":"adopt"}', "bad-request", "two descriptors are needed"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_the_channel_stays(
    peer: Peer, line: bytes, code: str, text: str
) -> None:
    peer.write(line + b"\n")
    answer = peer.line()
    assert answer is not None
    assert (answer["ok"], answer["code"]) == (False, code)
    assert text in answer["error"]
    assert peer.ask("hello")["ok"]


def test_an_endless_line_ends_the_channel_and_nobody_elses(host: Space, peer: Peer) -> None:
    other = host.attach()
    other.write(b"x" * ((1 << 20) + 10))
    answer = other.line()
    assert answer is not None and answer["error"] == "a line is longer than 1048576 bytes"
    assert other.line() is None
    other.close()
    assert peer.ask("hello")["ok"]


def test_a_request_may_arrive_in_pieces_and_several_at_once(peer: Peer) -> None:
    for byte in b'{"id":7,"op":"clock"}\n':
        peer.write(bytes([byte]))
    answer = peer.line()
    assert answer is not None and answer["id"] == 7
    peer.write(b'{"id":8,"op":"clock"}\n\n{"id":9,"op":"clock"}\n')
    assert [answer["id"] for answer in (peer.line(), peer.line()) if answer] == [8, 9]


def test_an_attach_that_is_killed_leaves_the_committer_well(host: Space) -> None:
    for _ in range(3):
        other = host.attach()
        other.ask("watch")
        other._process.kill()
        other.close()
    assert host.agent("status")[0]["host"] == "gpu01"


def test_a_job_runs_in_its_directory_and_its_end_is_told(peer: Peer) -> None:
    started = peer.ask(
        "job.start",
        name="j",
        argv=["sh", "-c", 'echo "$RANK in $TESTBED_JOB_DIR"; exit 3'],
        env={"RANK": "4"},
    )
    event = peer.event("job")
    assert (event["name"], event["state"], event["code"], event["pid"]) == (
        "j",
        "exited",
        3,
        started["pid"],
    )
    assert peer.ask("job.tail", name="j")["data"] == f"4 in {started['directory']}\n"


def test_ports_are_sampled_while_a_job_runs_and_no_longer(host: Space, peer: Peer) -> None:
    peer.ask("job.start", name="long", argv=["sleep", "60"])
    assert peer.ask("counters.keep", name="long", interval_s=0.1)["name"] == "long"
    found: list[dict[str, Any]] = []
    offset, give_up = 0, time.monotonic() + 30
    while len(found) < 3 and time.monotonic() < give_up:
        piece = peer.ask("counters.kept", name="long", offset=offset)
        offset = piece["offset"]
        found += [json.loads(text) for text in piece["data"].splitlines()]
        time.sleep(0.05)
    rows = [
        row
        for batch in found
        for row in counter_samples(HostEvent("gpu01", "counters", batch["t_ns"], batch))[
            HostPort("gpu01", 1)
        ]
    ]
    assert len(rows) >= 15 and all(row[6] == 1 for row in rows), "with carrier"
    walls = [
        batch["wall_ns"] - batch["t_ns"] + row[-1]
        for batch, row in zip(found, rows[4::5], strict=False)
    ]
    assert walls == sorted(walls)
    assert keepers(host) == 1
    peer.ask("job.stop", name="long")
    while keepers(host) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert keepers(host) == 0
    for message, why in (
        ({"name": "long"}, "does not run"),
        ({"name": "../x"}, "letters"),
        ({"name": "j", "interval_s": 9}, "possible"),
    ):
        assert why in peer.ask("counters.keep", **message)["error"]
    assert peer.ask("counters.kept", name="never")["data"] == ""


def keepers(host: Space) -> int:
    """Processes of the host that write down what its ports count."""
    output = host.run("sh", "-c", "for one in /proc/[0-9]*/fd/1; do readlink $one; done").stdout
    return sum("/ports/" in place for place in output.splitlines())


def test_a_file_of_a_job_is_read_piece_by_piece_in_whole_lines(peer: Peer) -> None:
    peer.ask("job.start", name="j", argv=["sh", "-c", "seq 1 2000 >numbers"])
    assert ended(peer, "j")["code"] == 0
    text, offset = "", 0
    while True:
        piece = peer.ask("job.tail", name="j", file="numbers", offset=offset, limit=1000)
        if not piece["data"]:
            break
        assert piece["data"].endswith("\n") and len(piece["data"]) <= 1000
        text, offset = text + piece["data"], piece["offset"]
    assert text.split() == [str(n) for n in range(1, 2001)] and offset == piece["size"]
    assert (
        peer.ask("job.tail", name="j", file="../../provision.json")["error"]
        == "file ../../provision.json is not in the job's directory"
    )


def test_a_job_that_ignores_being_asked_is_killed(peer: Peer) -> None:
    peer.ask(
        "job.start",
        name="deaf",
        argv=["sh", "-c", 'trap "" TERM; echo deaf; while :; do sleep 0.05; done'],
    )
    while not peer.ask("job.tail", name="deaf")["data"]:
        time.sleep(0.01)
    stopped = peer.ask("job.stop", name="deaf", grace_s=0.1)
    assert (stopped["state"], stopped["killed"]) == ("killed", True)


def test_a_job_that_is_asked_to_stop_may_clean_up(peer: Peer) -> None:
    peer.ask(
        "job.start",
        name="polite",
        argv=["sh", "-c", "trap 'echo bye; exit 7' TERM; echo here; while :; do sleep 0.02; done"],
    )
    while not peer.ask("job.tail", name="polite")["data"]:
        time.sleep(0.01)
    stopped = peer.ask("job.stop", name="polite", grace_s=3)
    assert (stopped["state"], stopped["code"], stopped["killed"]) == ("exited", 7, False)
    assert peer.ask("job.tail", name="polite")["data"].endswith("bye\n")


def test_a_job_outlives_the_committer_and_is_found_again(host: Space, peer: Peer) -> None:
    started = peer.ask(
        "job.start", name="long", argv=["sh", "-c", "until [ -e go ]; do sleep 0.02; done; exit 5"]
    )
    pid = started["pid"]
    assert (
        peer.ask("job.start", name="long", argv=["true"])["error"]
        == f"job long is already running (pid {pid})"
    )
    host.agent("stop")
    host.agent("start")
    again = host.attach()
    again.ask("watch")
    state = again.ask("job.status", name="long")
    assert (state["state"], state["pid"]) == ("running", pid)
    host.run("touch", started["directory"] + "/go")
    assert again.event("job")["code"] == 5
    again.close()


def test_a_program_that_is_not_there_is_an_exit_like_the_shells(peer: Peer) -> None:
    peer.ask("job.start", name="none", argv=["/no/such/program"])
    assert ended(peer, "none")["code"] == 127
    assert "not found" in peer.ask("job.tail", name="none")["data"]
    assert peer.ask("job.status", name="never")["state"] == "absent"


def test_jobs_are_collected_as_an_archive(host: Space, peer: Peer) -> None:
    peer.ask("job.start", name="j", argv=["echo", "hello"])
    ended(peer, "j")
    done = host.run(
        "sh",
        "-c",
        'python3 -S -E "$0" collect j | python3 -c \'import sys,json,base64,io,tarfile;'
        't=tarfile.open(fileobj=io.BytesIO(base64.b64decode(json.load(sys.stdin)["archive"])));'
        "print(json.dumps(sorted(t.getnames())))'",
        str(AGENT),
    )
    assert json.loads(done.stdout) == ["j", "j/exit", "j/job.json", "j/log"], done.stderr


@pytest.fixture
def as_nobody(host: Space) -> Iterator[Peer]:
    """A channel to a committer whose jobs run as a user that every machine has."""
    plain = facts("gpu01", 1, 2)
    assert host.agent("provision", plain | {"job_user": "nobody"})[0]["notes"] == []
    made = host.attach()
    made.ask("reload")
    made.ask("watch")
    yield made
    made.close()
    host.agent("provision", plain)
    host.agent("call", {"op": "reload"})


def test_a_job_runs_as_the_user_that_provisioning_names(as_nobody: Peer) -> None:
    text = 'id -u; id -g; echo "$HOME $USER"; nice; ulimit -l; grep -E "^(NoNewPrivs|CapEff)" /proc/self/status; echo here >file'
    started = as_nobody.ask("job.start", name="j", argv=["sh", "-c", text], checkpoints="j.c")
    assert ended(as_nobody, "j")["code"] == 0, as_nobody.ask("job.tail", name="j")
    nobody = pwd.getpwnam("nobody")
    lines = as_nobody.ask("job.tail", name="j")["data"].splitlines()
    assert lines[:2] == [str(nobody.pw_uid), str(nobody.pw_gid)]
    assert lines[2] == f"{started['directory']} nobody" and lines[3] == "0"
    assert "CapEff:\t0000000000000000" in lines and "NoNewPrivs:\t1" in lines
    assert as_nobody.ask("job.tail", name="j", file="file")["data"] == "here\n"


def test_a_users_job_reaches_nothing_of_ours_and_of_other_jobs(
    host: Space, as_nobody: Peer
) -> None:
    other = as_nobody.ask("job.start", name="other", argv=["true"])["directory"]
    text = (
        f"cd {other}/..; ls . ../checkpoints; cat ../provision.json ../started/j.json; touch x ../x;"
        " touch ../checkpoints/x ../workloads/x; echo '{}' >../started/j.json;"
        " echo 0 >../started/j.exit; cat /run/testbed/state.json; ls /run/testbed;"
        " mv j gone; exit 9"
    )
    as_nobody.ask("job.start", name="j", argv=["sh", "-c", text])
    assert ended(as_nobody, "j")["code"] == 9
    output = as_nobody.ask("job.tail", name="j")["data"]
    assert len(output.splitlines()) == 13 and all(
        "denied" in line for line in output.splitlines()
    ), output


def test_a_users_job_stops_like_any_other_one_and_leaves_nobody_behind(as_nobody: Peer) -> None:
    text = "sleep 1000 & trap 'echo bye; exit 7' TERM; echo here; while :; do sleep 0.02; done"
    as_nobody.ask("job.start", name="polite", argv=["sh", "-c", text])
    while not as_nobody.ask("job.tail", name="polite")["data"]:
        time.sleep(0.01)
    stopped = as_nobody.ask("job.stop", name="polite", grace_s=3)
    assert (stopped["state"], stopped["code"], stopped["killed"]) == ("exited", 7, False)
    as_nobody.ask(
        "job.start",
        name="deaf",
        argv=["sh", "-c", 'trap "" TERM; echo deaf; while :; do sleep 0.05; done'],
    )
    while not as_nobody.ask("job.tail", name="deaf")["data"]:
        time.sleep(0.01)
    stopped = as_nobody.ask("job.stop", name="deaf", grace_s=0.1)
    assert (stopped["state"], stopped["killed"]) == ("killed", True)


def test_checkpoints_outlive_the_job_and_change_hands_with_the_user(
    host: Space, as_nobody: Peer
) -> None:
    save = [
        "sh",
        "-c",
        "echo $RANK >>$TESTBED_CHECKPOINT_DIR/kept && cat $TESTBED_CHECKPOINT_DIR/kept",
    ]
    for rank in ("1", "2"):
        as_nobody.ask(
            "job.start", name=f"j{rank}", argv=save, env={"RANK": rank}, checkpoints="ours"
        )
        assert ended(as_nobody, f"j{rank}")["code"] == 0
    assert as_nobody.ask("job.tail", name="j2")["data"] == "1\n2\n"
    host.agent("provision", facts("gpu01", 1, 2) | {"job_user": "daemon"})
    as_nobody.ask("reload")
    as_nobody.ask("job.start", name="j3", argv=save, env={"RANK": "3"}, checkpoints="ours")
    assert (
        ended(as_nobody, "j3")["code"] == 0
        and as_nobody.ask("job.tail", name="j3")["data"] == "1\n2\n3\n"
    )
    for number in range(12):
        as_nobody.ask("job.start", name=f"n{number}", argv=["true"], checkpoints=f"n{number}")
    assert len(host.run("ls", "/run/var/checkpoints").stdout.split()) == 8


def test_what_a_job_puts_in_the_place_of_its_files_holds_nobody_up(as_nobody: Peer) -> None:
    as_nobody.ask(
        "job.start",
        name="j",
        argv=[
            "sh",
            "-c",
            "mkfifo pipe; ln -s /etc/shadow link; ln -s /dev/zero log2; mkdir dir; ln -s loop loop",
        ],
    )
    assert ended(as_nobody, "j")["code"] == 0
    assert as_nobody.ask("job.tail", name="j", file="pipe")["error"] == "file pipe is no plain file"
    assert as_nobody.ask("job.tail", name="j", file="dir")["error"] == "file dir is no plain file"
    assert as_nobody.ask("job.tail", name="j", file="loop")["code"] == "refused"
    for name in ("link", "log2"):
        assert (
            as_nobody.ask("job.tail", name="j", file=name)["error"]
            == f"file {name} is not in the job's directory"
        )


def test_a_plans_word_for_the_jobs_directory_does_not_count(peer: Peer) -> None:
    argv = ["sh", "-c", "echo $TESTBED_JOB_DIR"]
    started = peer.ask("job.start", name="j", argv=argv, env={"TESTBED_JOB_DIR": "/etc"})
    assert ended(peer, "j")["code"] == 0
    assert peer.ask("job.tail", name="j")["data"] == started["directory"] + "\n"


def test_attaching_imports_only_what_is_built_into_the_interpreter(tmp_path: Path) -> None:
    def imported(*arguments: str) -> set[str]:
        argv = [sys.executable, "-S", "-E", "-X", "importtime", *arguments]
        done = subprocess.run(
            argv, env={"TESTBED_RUN": str(tmp_path)}, capture_output=True, text=True, timeout=20
        )
        return {
            line.rpartition("|")[2].strip()
            for line in done.stderr.splitlines()
            if line.startswith("import time:")
        }

    assert imported(str(AGENT), "attach") - imported("-c", "pass") == {"_socket"}


def test_a_daemon_that_ends_whenever_it_starts_is_waited_for_no_longer_and_its_last_words_are_told(
    host: Space,
) -> None:
    host.agent("stop")
    host.run("mkdir", "-p", "/run/testbed-broken/committer.sock/full")
    broken = ["env", "TESTBED_RUN=/run/testbed-broken", sys.executable, "-S", "-E", str(AGENT)]
    try:
        done = host.run(*broken, "start")
        assert (
            "the daemon ended as it started" in done.stdout and "committer.sock" in done.stdout
        ), done
        assert not host.daemon_pids()
    finally:
        host.run(*broken, "stop")
        host.run("rm", "-r", "/run/testbed-broken")
        host.agent("start")
