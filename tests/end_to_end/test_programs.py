"""A program of the lab's owner, which knows nothing of the project, on the emulated lab: it runs
like the project's own.
"""

from __future__ import annotations

import json
import os
import shutil
import textwrap
import time
from collections.abc import Iterator

import pytest

from tests.end_to_end.conftest import Lab, ring

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

HOSTS = [f"gpu{n:02d}" for n in range(1, 7)]

TINY = '''
"""All ranks report to rank 0 in every iteration; SIGTERM ends them together, with a checkpoint."""
import json, os, signal, socket, sys, time
from pathlib import Path

options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if "=" in word)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
kept = Path(os.environ["TESTBED_CHECKPOINT_DIR"]) / "tiny.json"
done = json.loads(kept.read_text())["iter"] if "--resume" in sys.argv and kept.exists() else 0
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
if rank == 0:
    print("data:", (Path(os.environ["TESTBED_FILES"]) / "data.txt").read_text(), "as", os.getuid(), "in", os.getcwd())
    listening = socket.create_server(address, backlog=world)
    links = [listening.accept()[0] for _ in range(world - 1)]
else:
    for _ in range(600):
        try:
            links = [socket.create_connection(address, timeout=60)]
            break
        except OSError:
            time.sleep(0.05)
    links[0].settimeout(None)
while True:
    time.sleep(0.02)
    done += 1
    if rank:
        links[0].sendall(b"s" if asked else b".")
        ends = links[0].recv(1) != b"."
    else:
        ends = [link.recv(1) for link in links].count(b".") < len(links) or bool(asked)
        for link in links:
            link.sendall(b"s" if ends else b".")
        print(f"iter {done} loss {float(options['scale']) / done:.6f}")
    if ends:
        kept.write_text(json.dumps({"iter": done}))
        sys.exit(0)
'''
DECLARED = r"""
programs:
  tiny:
    command: [python, tiny.py]
    files: programs/tiny
    args:
      scale: {kind: float, min: 0, default: 1}
    iterations: {pattern: 'iter (?P<iter>\d+) loss (?P<loss>[-+.\deE]+)'}
    checkpoint: {resume: [--resume]}
    weights: [scale]
"""


@pytest.fixture
def owned(lab: Lab) -> Iterator[Lab]:
    """The lab, whose owner declares a program."""
    files, declared = lab.inventory / "programs" / "tiny", lab.inventory / "programs.yml"
    files.mkdir(parents=True)
    (files / "tiny.py").write_text(textwrap.dedent(TINY))
    (files / "data.txt").write_text("some text")
    declared.write_text(DECLARED)
    yield lab
    lab.testbed("down", "--yes")
    shutil.rmtree(files.parent)
    declared.unlink()


def job(rings: list[list[str]], **args: object) -> dict[str, object]:
    return {
        "name": "mine",
        "workload": "program",
        "program": "tiny",
        "ranks": HOSTS,
        "rings": rings,
        "args": args,
    }


@pytest.mark.long
def test_a_program_that_knows_nothing_of_the_project_runs_is_seen_and_keeps_over_other_rings(
    owned: Lab,
) -> None:
    started = owned.up(owned.plan("mine", ring((1, 2)), job=job([HOSTS], scale=2))).must()["job"]
    assert (started["state"], started["workload"], started["backend"], started["ranks"]) == (
        "running",
        "tiny",
        "gloo",
        6,
    )
    assert started["iterations"] >= 4 and started["iteration_ms"] >= 20 and not started["detail"]
    (file,) = (owned.folder / "state" / "runs" / started["run"]).glob("*.iterations.jsonl")
    assert json.loads(file.read_text().splitlines()[1]).items() >= {"iter": 2, "loss": 1.0}.items()
    other = owned.up(owned.plan("other", ring((1, 2)), job=job([HOSTS[::-1]], scale=2))).must()
    assert other["job"]["run"] == started["run"] and other["ring_change"] is None, (
        "its connections do not follow the rings"
    )
    stopped = owned.testbed("job", "stop").must()
    assert stopped["state"] == "stopped" and set(stopped["exit_codes"].values()) <= {0}


@pytest.mark.long
def test_a_program_resumes_is_replaced_when_its_files_change_and_shows_in_every_view(
    owned: Lab,
) -> None:
    plan = owned.plan("mine", ring((1, 2)), job=job([HOSTS], scale=2))
    first = owned.up(plan).must()
    assert owned.up(plan).must()["nothing_to_do"]
    lines = owned.testbed("job", "logs", "--host", "gpu01", "--lines", "100000").must()["lines"][
        "rank 0 (gpu01)"
    ]
    assert (
        lines[0].startswith("data: some text as ")
        and " as 0 " not in lines[0]
        and "/jobs/mine." in lines[0]
    )
    made = owned.testbed("job", "status").must()["iterations"]

    moved = owned.plan(
        "moved", [*ring((1, 2))[1:], ("gpu01:p3", "gpu02:p3")], job=job([HOSTS], scale=2)
    )
    went_on = owned.up(moved).must()["job"]
    assert went_on["run"] == first["run"] and went_on["iterations"] > made

    (owned.inventory / "programs" / "tiny" / "data.txt").write_text("other text")
    planned = owned.testbed("plan", "--topology", moved)
    assert "the declaration or the files of job.program" in json.dumps(planned.envelope)
    again = owned.up(moved).must()["job"]
    assert again["run"] != first["run"] and again["resumed_from"] >= went_on["iterations"], (
        "the same training, from its checkpoint"
    )
    lines = owned.testbed("job", "logs", "--host", "gpu01", "--lines", "100000").must()["lines"][
        "rank 0 (gpu01)"
    ]
    assert lines[0].startswith("data: other text"), "though nothing else differs"

    status = owned.testbed("status").must()
    assert status["job"]["workload"] == "tiny" and status["job"]["iterations"] > 0
    page = owned.folder / "page.html"
    assert (
        owned.testbed("experiment", "report", "last", "--out", page).exit_code == 0
        and "tiny" in page.read_text()
    )
    live = owned.up(owned.plan("live", ring((1, 2)), job=job([HOSTS], scale=3)), "--job", "live")
    assert live.exit_code != 0 and "job.args.scale differ" in live.envelope["message"], (
        "as with the project's own programs"
    )
    kept = owned.up(
        owned.plan("kept", ring((1, 2)), job=job([HOSTS], scale=3)), "--job", "keep"
    ).must()["job"]
    assert kept["run"] == again["run"]
    once_more = owned.up(
        owned.plan("again", ring((1, 2)), job=job([HOSTS], scale=3)), "--job", "restart"
    ).must()["job"]
    assert once_more["run"] != again["run"] and once_more["resumed_from"] == 0, (
        "another scale trains other weights"
    )


@pytest.mark.long
def test_what_a_program_lacks_is_said_before_light_moves_and_iterations_that_do_not_show_are_missed(
    owned: Lab,
) -> None:
    declared = owned.inventory / "programs.yml"
    plan = owned.plan("mine", ring((1, 2)), job=job([HOSTS]))
    before = owned.writes()
    declared.write_text(DECLARED.replace("files: programs/tiny", "path: /opt/no-such"))
    missing = owned.up(plan)
    assert (
        missing.exit_code
        and "gpu04: program tiny needs the directory /opt/no-such" in missing.envelope["message"]
    ), missing
    declared.write_text(DECLARED.replace("files: programs/tiny", "files: programs/no-such"))
    assert "no such directory" in owned.up(plan).envelope["message"]
    declared.write_text(DECLARED.replace("    args:", "    user: no-such-user\n    args:"))
    absent = owned.up(plan)
    assert "no user no-such-user on this host" in absent.envelope["message"], absent
    assert owned.writes() == before and not any(owned.light().values()), "nothing moved"

    declared.write_text(DECLARED.replace("    args:", "    user: nobody\n    args:"))
    up = owned.up(plan).must()["job"]
    (first, *_) = owned.testbed("job", "logs", "--host", "gpu01", "--lines", "100000").must()[
        "lines"
    ]["rank 0 (gpu01)"]
    assert "as 65534 in" in first and up["state"] == "running"

    declared.write_text(DECLARED.replace("pattern: 'iter", "pattern: 'itr"))
    silent = owned.up(plan).must()["job"]
    assert (
        silent["state"] == "starting"
        and "no iteration of tiny shows: no line of its output matched" in silent["detail"]
    )
    assert (
        "as in its last run" in silent["detail"]
        and "the last line of its output: 'iter " in silent["detail"]
    )
    assert "programs.yml:3:3" in silent["detail"]
    time.sleep(0.1)
    assert "no iteration of tiny shows" in json.dumps(owned.testbed("status").envelope)
