"""The supervisor of a rank, on plain processes: what it records, passes on and survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent.jobs import heartbeats
from tests.kit.waiting import until

ROOT = Path(__file__).parents[3]
PATTERN = r"--pattern=iter (?P<iter>\d+) loss (?P<loss>[-+.\deEna]+)"


def start(
    directory: Path,
    program: str,
    *options: str,
    rank: int = 0,
    argv: tuple[str, ...] = (),
    **env: str,
) -> subprocess.Popen[str]:
    directory.mkdir(exist_ok=True)
    script = directory / "program.py"
    script.write_text(program)
    here = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "TESTBED_JOB_DIR": str(directory),
        "RANK": str(rank),
    }
    command = [
        sys.executable,
        "-m",
        "workloads.programs.supervise",
        "--program",
        "p",
        *options,
        "--",
        *(argv or (sys.executable, script)),
    ]
    with (directory / "log").open("w") as log:
        return subprocess.Popen(
            command, cwd=directory, env=here | env, stdout=log, stderr=subprocess.STDOUT, text=True
        )


def ended(directory: Path, *argv: Any, **more: Any) -> int:
    return start(directory, *argv, **more).wait(60)


def iterations(directory: Path) -> list[dict[str, Any]]:
    file = directory / "iterations.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def summary(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return found


def test_lines_that_match_become_records_in_our_format_and_all_output_stays_in_the_log(
    tmp_path: Path,
) -> None:
    program = """
import sys, time
print("starting")
for k in range(3):
    time.sleep(0.02)
    print(f"iter {k} loss {2.5 - k}")
sys.stderr.write("iter 3 loss nan\\n")
print("iter 1 loss 9")
print("iter 13 loss 1e-3", end="")
print("x" * 100_000 + "iter 14 loss 1")
print("iter 23 loss 0.5")
"""
    before_ns = time.time_ns()
    assert ended(tmp_path, program, PATTERN) == 0
    made = iterations(tmp_path)
    assert [r["iter"] for r in made] == [0, 1, 2, 3, 13, 23], "each once, and no earlier one again"
    assert [row[0] for row in heartbeats.read(str(tmp_path / "heartbeat"), -1)["times"]] == [
        0,
        1,
        2,
        3,
        13,
        23,
    ]
    assert [r.get("loss") for r in made] == [2.5, 1.5, 0.5, None, 0.001, 0.5], "no number, no loss"
    assert [r.get("steps", 1) for r in made] == [1, 1, 1, 1, 10, 10]
    assert sum(r["iter_ms"] * r.get("steps", 1) for r in made) >= 59, (
        "however late a line is read, the times add up"
    )
    assert all(r["t_wall_ns"] >= before_ns for r in made)
    output = (tmp_path / "log").read_text()
    assert output.startswith("starting\niter 0 loss 2.5\n") and output.count("x") == 100_000
    assert (
        summary(tmp_path)["ok"]
        and summary(tmp_path)["iterations"] == 23
        and summary(tmp_path)["shown"] == 6
    )
    assert summary(tmp_path)["first_loss"] == 2.5 and summary(tmp_path)["last_loss"] == 0.5


def test_a_progress_bar_shows_its_iterations(tmp_path: Path) -> None:
    program = "import sys\nfor k in range(3):\n    sys.stdout.write(f'\\riter {k} loss {k}')\n    sys.stdout.flush()\nprint()"
    assert ended(tmp_path, program, PATTERN) == 0
    assert [r["iter"] for r in iterations(tmp_path)] == [0, 1, 2]


def test_a_file_of_json_lines_is_followed_whatever_is_in_it(tmp_path: Path) -> None:
    program = """
import json, time
with open("progress.jsonl", "w", buffering=1) as file:
    file.write("no json\\n[1]\\n" + "[" * 70_000 + "\\n")
    for k in range(1, 4):
        file.write(json.dumps({"step": k, "train/loss": str(k / 2), "other": {}})[:20])
        time.sleep(0.05)
        file.write(json.dumps({"step": k, "train/loss": str(k / 2), "other": {}})[20:] + "\\n")
    file.write(json.dumps({"step": True, "train/loss": 1}) + "\\n" + json.dumps({"step": 1e300}) + "\\n")
"""
    assert (
        ended(
            tmp_path, program, "--file=progress.jsonl", "--key=iter=step", "--key=loss=train/loss"
        )
        == 0
    )
    assert [(r["iter"], r["loss"]) for r in iterations(tmp_path)] == [(1, 0.5), (2, 1.0), (3, 1.5)]


@pytest.mark.parametrize(
    "make", ["os.mkdir", "os.mkfifo", "lambda path: os.symlink('/dev/zero', path)"]
)
def test_a_file_that_is_none_does_not_end_the_program(tmp_path: Path, make: str) -> None:
    program = f"import os, time\n({make})('p.jsonl')\ntime.sleep(0.2)\nopen('after', 'w')\n"
    assert ended(tmp_path, program, "--file=p.jsonl", "--key=iter=iter") == 0
    assert (tmp_path / "after").exists() and summary(tmp_path)["shown"] == 0


def test_a_program_that_reports_itself_is_left_alone(tmp_path: Path) -> None:
    program = """
import json, os
with open(os.environ["TESTBED_JOB_DIR"] + "/iterations.jsonl", "a", buffering=1) as file:
    file.write(json.dumps({"iter": 1, "iter_ms": 5.0, "t_wall_ns": 1}) + "\\n")
"""
    assert ended(tmp_path, program) == 0
    assert iterations(tmp_path) == [{"iter": 1, "iter_ms": 5.0, "t_wall_ns": 1}]
    assert summary(tmp_path) | {"trained_s": 0} == {
        "workload": "p",
        "ok": True,
        "exit_code": 0,
        "stopped": False,
        "world": 1,
        "trained_s": 0,
    }


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("code", [0, 2, 75])
def test_its_exit_code_is_the_programs(tmp_path: Path, rank: int, code: int) -> None:
    assert (
        ended(tmp_path, f"import sys; print('iter 1 loss 1'); sys.exit({code})", PATTERN, rank=rank)
        == code
    )
    assert (
        len(iterations(tmp_path)) == (rank == 0)
        and "iter 1 loss 1" in (tmp_path / "log").read_text()
    )
    if rank == 0:
        assert summary(tmp_path)["exit_code"] == code and summary(tmp_path)["ok"] == (code == 0)


def test_a_program_killed_by_a_signal_or_not_there_says_so(tmp_path: Path) -> None:
    assert (
        ended(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", PATTERN)
        == 128 + signal.SIGSEGV
    )
    for rank in (0, 1):
        assert ended(tmp_path, "", PATTERN, rank=rank, argv=("no-such-program", "x")) == 127
        assert (
            "p: no-such-program: No such file or directory (PATH=" in (tmp_path / "log").read_text()
        )


def test_sigterm_reaches_the_program_once_which_may_finish_its_iteration(tmp_path: Path) -> None:
    program = """
import signal, sys, time
count = []
signal.signal(signal.SIGTERM, lambda *_: count.append(1))
print("iter 1 loss 1")
while not count:
    time.sleep(0.01)
time.sleep(0.2)
print(f"iter 2 loss 1\\nasked {len(count)} times")
"""
    running = start(tmp_path, program, PATTERN)
    until(lambda: iterations(tmp_path))
    running.send_signal(signal.SIGTERM)
    assert running.wait(60) == 0
    assert [r["iter"] for r in iterations(tmp_path)] == [1, 2] and "asked 1 times" in (
        tmp_path / "log"
    ).read_text()
    assert summary(tmp_path)["stopped"]


def test_a_killed_supervisor_takes_the_program_with_it(tmp_path: Path) -> None:
    program = "import os, time; open('pid', 'w').write(str(os.getpid())); print('iter 1 loss 1'); time.sleep(600)"
    running = start(tmp_path, program, PATTERN)
    until(lambda: iterations(tmp_path))
    running.kill()
    running.wait(60)
    stat = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_process_left_behind_does_not_keep_the_rank(tmp_path: Path) -> None:
    """It holds the pipe that the program's output goes through."""
    program = """
import subprocess, sys
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
open("left", "w").write(str(left.pid))
print("iter 1 loss 1")
"""
    try:
        assert ended(tmp_path, program, PATTERN) == 0
        assert len(iterations(tmp_path)) == 1
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


def test_the_programs_own_files_come_first_and_a_value_is_never_a_file(tmp_path: Path) -> None:
    files, venv = tmp_path / "files", tmp_path / "venv"
    (files / "package").mkdir(parents=True)
    (files / "package" / "__init__.py").write_text("WHERE = 'mine'")
    (files / "train.py").write_text(
        "import os, sys, json, package\n"
        "json.dump([sys.argv[1:], package.WHERE, os.getcwd(), os.environ['VIRTUAL_ENV'], os.environ['PATH']], open('seen', 'w'))"
    )
    (files / "--data=train.py").write_text("")
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    argv = ("python", "train.py", "--data=train.py", "data=train.py", "/train.py", "nothing.py")
    for rank in (0, 1):
        assert (
            ended(tmp_path, "", f"--directory={files}", f"--venv={venv}", rank=rank, argv=argv) == 0
        )
        arguments, package, cwd, env, path = json.loads((tmp_path / "seen").read_text())
        assert arguments == ["--data=train.py", "data=train.py", "/train.py", "nothing.py"]
        assert (package, cwd, env) == ("mine", str(tmp_path), str(venv)) and path.startswith(
            f"{venv}/bin:"
        )
