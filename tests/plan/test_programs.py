"""Programs of the lab's owner: what may be declared, and what a plan may say of one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from optics import BadFile
from optics.plan import Job
from orchestrator.hosts import launch
from orchestrator.hosts.by_hand import by_hand, mpirun, torchrun
from orchestrator.hosts.facts import facts
from orchestrator.inventory.lab import Lab, read_lab
from orchestrator.inventory.patterns import explosive
from orchestrator.plan.reader import read_plan
from orchestrator.plan.written import document_of

INVENTORY = Path(__file__).parents[2] / "inventory" / "emulated"
FILES = [(INVENTORY / f"{name}.yml").read_text() for name in ("hosts", "devices", "fibres")]

GPT = r"""
programs:
  gpt:
    command: [python, train.py, --data, "{files}/text.txt"]
    path: /opt/gpt
    venv: /opt/torch
    user: ml
    env: {OMP_NUM_THREADS: "1", GLOO_SOCKET_IFNAME: eth9}
    args:
      iterations: {kind: int, min: 0, max: 1000, default: 100}
      lr: {kind: float, min: 0, option: --learning-rate}
      preset: {kind: choice, of: [small, large, 2]}
      name: {kind: str}
      tag: {kind: str, pattern: '[a-z ]+', option: model.tag}
      fast: {kind: flag}
    iterations: {pattern: 'iter (?P<iter>\d+) loss (?P<loss>[-+.\deE]+)'}
    checkpoint: {resume: [--resume, "{files}/last"]}
    weights: [preset, iterations]
"""


def lab(programs: str = GPT) -> Lab:
    return read_lab(FILES[0], FILES[1], FILES[2], programs)


def wrong(programs: str) -> list[str]:
    with pytest.raises(BadFile) as refused:
        lab(programs)
    return refused.value.problems


def plan_text(**job: object) -> str:
    body = {"name": "j", "workload": "program", "program": "gpt", "ranks": ["gpu01", "gpu02"]} | job
    body = {key: value for key, value in body.items() if value is not None}
    links = [{"a": "gpu01:p1", "b": "gpu02:p1"}]
    return json.dumps(
        {"schema": "testbed.plan/1", "name": "p", "links": links, "job": body}, indent=1
    )


def read(at: Lab, **job: object) -> Job:
    found = read_plan(plan_text(**job), "plan.json", at).job
    assert found is not None
    return found


def refused(at: Lab, **job: object) -> list[str]:
    with pytest.raises(BadFile) as error:
        read_plan(plan_text(**job), "plan.json", at)
    return error.value.problems


def test_a_rank_gets_the_owners_command_the_plans_arguments_and_torchruns_environment() -> None:
    at = lab()
    job = read(
        at,
        args={"preset": "small", "lr": 0.5, "name": "-rf", "tag": "a b", "fast": True},
        env={"OMP_NUM_THREADS": "2"},
    )
    assert (job.program, job.backend, job.training) == (
        "gpt",
        "gloo",
        {"preset": "small", "iterations": 100},
    )
    request = launch.requests(job, at, "r7", resume=True)["gpu02"]
    argv = request["argv"]
    assert argv[:4] == ["python3", "-m", "workloads.programs.supervise", "--program"]
    assert argv[argv.index("--") + 1 :] == [
        *("python", "train.py", "--data", "/opt/gpt/text.txt"),
        *(
            "--iterations=100",
            "--learning-rate=0.5",
            "--preset=small",
            "--name=-rf",
            "model.tag=a b",
            "--fast",
        ),
        *("--resume", "/opt/gpt/last"),
    ]
    assert (
        "--directory=/opt/gpt" in argv and "--venv=/opt/torch" in argv and request["user"] == "ml"
    )
    env = request["env"]
    names = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "NODE_RANK",
    )
    assert [env[name] for name in names] == ["1", "2", "0", "1", "1", "2", "1", "1"]
    assert (env["TORCHELASTIC_RUN_ID"], env["TESTBED_BACKEND"], env["TESTBED_FILES"]) == (
        "j.r7",
        "gloo",
        "/opt/gpt",
    )
    assert (env["GLOO_SOCKET_IFNAME"], env["OMP_NUM_THREADS"]) == ("eth9", "2"), (
        "the owner's, then what a plan may tune"
    )
    assert request["checkpoints"].startswith("j.") and facts(at.hosts["gpu01"])["job_users"] == [
        "ml"
    ]
    assert "--resume" not in launch.requests(job, at, "r7")["gpu01"]["argv"]


def test_several_ranks_on_a_host_over_the_projects_back_end() -> None:
    at = lab(GPT.replace("iterations: {pattern", "backend: testbed\n    iterations: {pattern"))
    ranks = ["gpu01/0", "gpu01/1", "gpu01/2", "gpu02"]
    requests = launch.requests(read(at, ranks=ranks), at, "r7")
    names = (
        "RANK",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "TESTBED_REPLACES",
    )
    assert [[requests[rank]["env"][name] for name in names] for rank in ranks] == [
        ["0", "0", "3", "0", "2", "gloo"],
        ["1", "1", "3", "0", "2", "gloo"],
        ["2", "2", "3", "0", "2", "gloo"],
        ["3", "0", "1", "1", "2", "gloo"],
    ]
    assert "TESTBED_REPLACES" not in launch.requests(read(lab()), lab(), "r7")["gpu01"]["env"]
    found = by_hand(read(at, ranks=ranks), at)
    assert "gpu01:3,gpu02:1" in mpirun(found)[0]
    lines = "\n".join(torchrun(found))
    assert (
        "--nnodes=2 --nproc-per-node=3 --node-rank=0" in lines
        and "--nproc-per-node=1 --node-rank=1" in lines
    )


@pytest.mark.parametrize("more", ["", "    backend: testbed\n"])
def test_a_plan_with_a_program_is_written_as_it_was_read(more: str) -> None:
    at = lab(GPT + more)
    plan = read_plan(
        plan_text(args={"preset": "small"}, ranks=["gpu01/0", "gpu01/1", "gpu02"]), "plan.json", at
    )
    again = read_plan(json.dumps(document_of(plan)), "again", at)
    assert replace(again, sha256=plan.sha256) == plan


def test_programs_add_nothing_to_the_requests_and_facts_of_other_labs() -> None:
    body = {"workload": "train", "program": None}
    plain = read_lab(FILES[0], FILES[1], FILES[2])
    assert launch.requests(read(plain, **body), plain, "r") == launch.requests(
        read(lab(), **body), lab(), "r"
    )
    assert "job_users" not in facts(plain.hosts["gpu01"])


def test_a_training_is_another_if_its_program_or_what_decides_its_weights_is() -> None:
    at = lab()
    one = read(at, args={"preset": "small"})
    same = [
        read(at, args={"preset": "small", "fast": True, "name": "x"}),
        read(at, args={"preset": "small"}, rings=[]),
    ]
    others = [
        read(at, args={"preset": "large"}),
        read(at, args={"preset": "small", "iterations": 5}),
        replace(one, program="b"),
    ]
    assert {launch.identity(job) for job in same} == {launch.identity(one)}
    assert len({launch.identity(job) for job in [one, *others]}) == 4
    assert launch.resumable(one) and not launch.resumable(
        read(lab(GPT.replace("checkpoint:", "x_checkpoint:")))
    )
    changed = read(lab(GPT.replace("train.py", "other.py")), args={"preset": "small"})
    assert changed.version != one.version and launch.identity(changed) == launch.identity(one)


@pytest.mark.parametrize(
    ("job", "text"),
    [
        ({"program": "gtp"}, "plan.json:13:14: job.program: no program gtp: did you mean gpt?"),
        (
            {"program": None},
            "plan.json:12:15: job.workload: a job of workload program names it: add program; declared: gpt",
        ),
        (
            {"workload": "train"},
            "plan.json:13:3: job.program: only workload program names one; this job is train",
        ),
        (
            {"args": {"itertions": 1}},
            "job.args.itertions: the owner of gpt opens no argument itertions; did you mean iterations?",
        ),
        (
            {"args": {"command": "sh"}},
            "the owner of gpt opens no argument command; it opens iterations, lr, preset, name",
        ),
        (
            {"args": {"iterations": 1001}},
            "job.args.iterations: wanted a whole number from 0 to 1000, got 1001",
        ),
        ({"args": {"iterations": "7"}}, 'wanted a whole number from 0 to 1000, got "7"'),
        ({"args": {"iterations": True}}, "wanted a whole number from 0 to 1000, got true"),
        ({"args": {"lr": -1}}, "wanted a number from 0, got -1"),
        (
            {"args": {"preset": "small --data /etc/shadow"}},
            'wanted small, large or 2, got "small --data /etc/shadow"',
        ),
        ({"args": {"preset": True}}, "wanted small, large or 2, got true"),
        ({"args": {"preset": 2.0}}, "wanted small, large or 2, got 2"),
        (
            {"args": {"name": "../../etc/shadow"}},
            "wanted letters, digits, '.', '_' and '-', at most 64, other than .., got",
        ),
        ({"args": {"name": ".."}}, "at most 64, other than .., got"),
        ({"args": {"name": "a b"}}, "wanted letters, digits"),
        ({"args": {"name": "$(id)"}}, "wanted letters, digits"),
        ({"args": {"name": "{files}"}}, "wanted letters, digits"),
        (
            {"args": {"tag": "a" * 257}},
            "wanted text that matches [a-z ]+, at most 256 characters, got",
        ),
        ({"args": {"tag": "a\nb"}}, "job.args.tag: wanted"),
        ({"args": {"fast": 1}}, "wanted true or false, got 1"),
        (
            {"backend": "nccl"},
            "job.backend: the owner of the lab declares it for gpt: gloo; leave it out",
        ),
        ({"env": {"PATH": "/tmp"}}, "a plan may not set PATH"),
        (
            {"env": {"TORCHELASTIC_RUN_ID": "x"}},
            "a plan may not set TORCHELASTIC_RUN_ID; it sets which program runs",
        ),
        ({"env": {"TESTBED_PROGRAM": "x"}}, "a plan may not set TESTBED_PROGRAM"),
        ({"command": ["sh"]}, "job.command: unknown field"),
        ({"user": "root"}, "job.user: unknown field"),
        ({"files": "/"}, "job.files: unknown field"),
        ({"version": "0"}, "job.version: unknown field"),
        ({"traffic": {}}, "job.traffic: only a replay has traffic; this job is program"),
    ],
)
def test_a_plan_sets_only_what_the_owner_opened(job: dict[str, object], text: str) -> None:
    assert text in "\n".join(refused(lab(), **job))


def test_a_program_that_is_not_there_is_refused_in_a_lab_without_any() -> None:
    assert (
        "no program gpt: this lab declares none (programs.yml in its inventory)"
        in refused(lab("programs: {}"))[0]
    )


def test_nccl_needs_gpus_and_files_that_cannot_be_copied_are_reported_by_the_plan_that_needs_them() -> (
    None
):
    (line,) = refused(lab(GPT + "    backend: nccl\n"))
    assert "gpt uses nccl, which needs a GPU on every host of the job; none on gpu01, gpu02" in line
    at = lab()
    broken = replace(
        at, programs={"gpt": replace(at.programs["gpt"], trouble=("x/link: a symbolic link",))}
    )
    (line,) = refused(broken)
    assert (
        "job.program: gpt (programs.yml:3:3) cannot be copied to the hosts: x/link: a symbolic link"
        in line
    )
    assert read_plan(plan_text(workload="train", program=None), "plan.json", broken).job


def test_the_declared_back_end_decides_whether_each_rank_needs_a_gpu() -> None:
    files = [FILES[0].replace("testbed_gpus: 0", "testbed_gpus: 1"), *FILES[1:]]
    ranks = ["gpu01/0", "gpu01/1", "gpu02"]
    assert read(read_lab(*files, GPT), ranks=ranks).ranks == tuple(ranks)
    (line,) = refused(read_lab(*files, GPT + "    backend: nccl\n"), ranks=ranks)
    assert "2 ranks on gpu01, which has 1 GPU (testbed_gpus)" in line


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (
            "path: /opt/gpt",
            "path: /opt/gpt\n    files: gpt",
            "gpt.path: files are copied to the hosts, or path names a directory",
        ),
        ("path: /opt/gpt", "path: opt/gpt", "programs.gpt.path: wanted text that matches"),
        (
            "    path: /opt/gpt\n",
            "",
            "programs.gpt.command[3]: {files} needs files, or a path on the hosts",
        ),
        (
            '"{files}/text',
            '"{rank}/text',
            "unknown {rank}; {files} is replaced, ranks and addresses are in the environment",
        ),
        (
            "command: [python, train.py",
            'command: ["", train.py',
            "programs.gpt.command[0]: wanted at least 1 characters",
        ),
        (
            "user: ml",
            "user: 'ml;id'",
            "programs.gpt.user: wanted a user name in lower-case letters",
        ),
        (
            "user: ml",
            "usr: ml",
            "programs.yml:7:5: programs.gpt.usr: unknown field; did you mean user?",
        ),
        (
            'OMP_NUM_THREADS: "1"',
            'RANK: "1", PATH: /tmp',
            "programs.gpt.env: RANK, PATH: set by the launcher for every rank",
        ),
        (
            'OMP_NUM_THREADS: "1"',
            "OMP_NUM_THREADS: 1",
            "programs.gpt.env.OMP_NUM_THREADS: wanted text, got 1",
        ),
        ("kind: int, min: 0", "kind: whole, min: 0", "wanted int, float, choice, str or flag, got"),
        (
            "default: 100",
            "default: 1001",
            "args.iterations.default: wanted a whole number from 0 to 1000, got 1001",
        ),
        (
            "min: 0, max: 1000,",
            "min: 9, max: 1,",
            "args.iterations.max: wanted at least min, 9, got 1",
        ),
        (
            "{kind: float, min: 0,",
            "{kind: flag, min: 0,",
            "args.lr.min: an argument of kind flag takes no min",
        ),
        (
            "{kind: choice, of: [small, large, 2]}",
            "{kind: choice}",
            "args.preset: a choice needs of: the values to choose from",
        ),
        ("option: --learning-rate", "option: '--lr x'", "args.lr.option: wanted text that matches"),
        (
            "'[a-z ]+'",
            "'[a-z +'",
            'args.tag.pattern: "[a-z +" is not a regular expression: unterminated character set',
        ),
        (
            r"'iter (?P<iter>\d+)",
            r"'iter (\d+)",
            'iterations.pattern: no group named iter, such as "iter (?P<iter>\\d+)"',
        ),
        (
            r"(?P<iter>\d+)",
            r"(?P<iter>(\d+)+)",
            "an optional part or an alternative inside a repeated group, which can take very long",
        ),
        ("(?P<loss>", "(?P<los>", "iterations.pattern: unknown group los; did you mean loss?"),
        (
            "'}\n    checkpoint",
            "', reporter: true}\n    checkpoint",
            "wanted one of pattern, file and reporter; pattern and",
        ),
        (
            "iterations: {pattern:",
            "iterations: {iter: step, x_pattern:",
            "wanted one of pattern, file and reporter; none is given",
        ),
        (
            "iterations: {pattern:",
            "iterations: {iter: step, pattern:",
            "iterations.iter: iter names a key of the lines of file",
        ),
        (
            "iterations: {pattern:",
            "iterations: {file: ../x, x_pattern:",
            "iterations.file: wanted text that matches",
        ),
        (
            "weights: [preset, iterations]",
            "weights: [prest]",
            "weights[0]: gpt has no argument prest; did you mean preset?",
        ),
        (
            "weights: [preset, iterations]",
            "backend: mpi",
            "programs.gpt.backend: wanted testbed, gloo, nccl or none",
        ),
        ("programs:\n", "programs:\n  [", "programs.yml:"),
        (
            "programs:",
            "program:",
            "programs.yml:2:1: program: unknown field; did you mean programs?",
        ),
    ],
)
def test_a_declaration_is_refused_with_its_mistake_at_its_place(
    old: str, new: str, text: str
) -> None:
    assert GPT.count(old) == 1, old
    assert text in "\n".join(wrong(GPT.replace(old, new)))


@pytest.mark.parametrize(
    ("pattern", "bad"),
    [
        (r"(a|aa)+b", True),
        (r"(?:x*)*y", True),
        (r"((\d+) )+", True),
        (r"(?:a(?:b+)c){2,}", True),
        (r"(a{1,3})*b", True),
        (r"(a?){40}b", True),
        (r"(?:a?b?)+x", True),
        (r"(?:a{3}b)+x", False),
        (r"(?P<n>ab)+(?:cd)*?(?=x)", False),
        ("x*" * 13, True),
        (r"\(\d+\)+", False),
        (r"[(a|b)+]+x", False),
        (r"(?P<iter>\d+)/(?P<n>\d+)( loss (\S+))?", False),
        (r"\{'iter': (?P<iter>\d+)", False),
    ],
)
def test_patterns_that_can_take_exponential_time_are_told_from_others(
    pattern: str, bad: bool
) -> None:
    assert bool(explosive(pattern)) == bad
