"""What a plan's job may say to its program is checked against what the program takes, before
anything moves.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from optics import BadFile
from optics.plan import Job
from orchestrator.hosts.launch import identity, requests
from orchestrator.inventory.lab import Lab
from orchestrator.plan.reader import read_plan
from workloads.programs.option import Option
from workloads.programs.options import OPTIONS

ROOT = Path(__file__).parents[2]


def text(**job: object) -> str:
    body = {"name": "j", "workload": "train", "ranks": ["gpu01", "gpu02"]} | job
    return json.dumps(
        {
            "schema": "testbed.plan/1",
            "name": "p",
            "links": [{"a": "gpu01:p1", "b": "gpu02:p1"}],
            "job": body,
        },
        indent=1,
    )


def refused(lab: Lab, **job: object) -> list[str]:
    with pytest.raises(BadFile) as error:
        read_plan(text(**job), "plan.json", lab)
    return error.value.problems


@pytest.mark.parametrize(
    ("workload", "args", "message"),
    [
        (
            "serve",
            {"prefill": 2},
            "job.args.prefill: 2: of 2 ranks none is left to make tokens; with 0 each rank does both",
        ),
        ("moe", {"domain": 3}, "job.args.domain: 3: domains of 3 do not divide 2 ranks"),
        ("serve", {"trace": "list"}, "job.args.list: trace list needs it, and no other trace"),
        ("serve", {"list": "0:1:1"}, "job.args.list: trace list needs it, and no other trace"),
        (
            "serve",
            {"trace": "list", "list": "0:one:1"},
            'requests AT_S:PROMPT:OUTPUT, with blanks between them, got "0:one:1": 0:one:1 is not',
        ),
        (
            "serve",
            {"long_every": 4, "long_prompt": 20_000},
            "job.args.pages: 1024: a request of up to 20024 tokens takes 1252, of 16 tokens each",
        ),
        (
            "serve",
            {"layers": 32, "heads": 8, "dimension": 128, "pages": 4096},
            "job.args.pages: 4096 of 2097152 bytes take 8192 MiB of each rank; wanted at most 4096",
        ),
        (
            "serve",
            {"requests": 1000, "rate": 0.1},
            "job.args.rate: 0.1: 1000 requests take 1e+04 s; an iteration may have 3600",
        ),
        ("serve", {"chunk": 20}, "wanted a whole number from 16 to 1048576, a multiple of 16"),
        ("serve", {"trace": "tides"}, "wanted poisson, periodic, bursts or list"),
        (
            "train",
            {"batchsize": 4},
            "plan.json:18:4: job.args.batchsize: train takes no argument batchsize; did you mean batch?",
        ),
        (
            "train",
            {"checkpoint_dir": "/etc"},
            "train takes no argument checkpoint_dir; did you mean checkpoint?",
        ),
        (
            "train",
            {"qqq": 1},
            "train takes no argument qqq; it takes model, iterations, batch, hidden, lr, seed, bucket_mb, ",
        ),
        (
            "train",
            {"iterations": "many"},
            'job.args.iterations: wanted a whole number from 0 to 1000000000, got "many"',
        ),
        ("train", {"iterations": "4"}, 'wanted a whole number from 0 to 1000000000, got "4"'),
        ("train", {"iterations": 4.0}, "wanted a whole number from 0 to 1000000000, got 4"),
        ("train", {"iterations": True}, "wanted a whole number from 0 to 1000000000, got true"),
        (
            "train",
            {"hidden": 33},
            "wanted a whole number from 0 to 65536, a multiple of 32, got 33",
        ),
        ("train", {"bucket_mb": 0}, "wanted a number above 0 and up to 65536, got 0"),
        ("train", {"lr": -0.1}, "wanted a number from 0 to 1000000000, got -0.1"),
        ("train", {"model": "bert"}, 'wanted mlp, cnn or transformer, got "bert"'),
        ("train", {"resume": 1}, "wanted true or false, got 1"),
        ("train", {"exchange": "mpi"}, 'wanted wires, gloo, aggregate or datagrams, got "mpi"'),
        (
            "train",
            {"compress": "topk:2"},
            'wanted none, fp16, topk:SHARE (above 0, up to 1) or powersgd:RANK (1 to 64), got "topk:2"',
        ),
        ("train", {"compress": 2}, "or powersgd:RANK (1 to 64), got 2"),
        (
            "train",
            {"compress": "bf16"},
            'got "bf16": torch\'s hook for it is for NCCL alone; fp16 sends as few bytes',
        ),
        ("train", {"sync_every": 0}, "wanted a whole number from 1 to 1000000000, got 0"),
        ("allreduce", {"check": True}, "wanted 0 or 1, got true"),
        (
            "allreduce",
            {"minbytes": "1T"},
            "wanted a size such as 65536, 64K or 1G from 4 to 1099511627776, got",
        ),
        ("allreduce", {"minbytes": 3}, "wanted a size such as 65536, 64K or 1G from 4"),
        (
            "allreduce",
            {"minbytes": "64K", "maxbytes": "1K"},
            'job.args.maxbytes: wanted at least minbytes, 65536, got "1K"',
        ),
        ("allreduce", {"maxbytes": 4096}, "wanted at least minbytes, 1048576, got 4096"),
    ],
)
def test_an_argument_the_program_does_not_take_is_refused_at_its_place(
    lab: Lab, workload: str, args: dict[str, object], message: str
) -> None:
    (problem,) = refused(lab, workload=workload, args=args)
    assert message in problem


@pytest.mark.parametrize(
    ("workload", "args"),
    [
        (
            "train",
            {
                "iterations": 0,
                "batch": 4,
                "hidden": 64,
                "lr": 0.5,
                "bucket_mb": 2,
                "model": "cnn",
                "resume": False,
            },
        ),
        (
            "allreduce",
            {
                "minbytes": "16M",
                "maxbytes": "64M",
                "iters": 5,
                "check": 0,
                "loop": True,
                "seconds": 1.5,
            },
        ),
        ("allreduce", {"minbytes": 65536}),
    ],
)
def test_arguments_the_program_takes_pass(lab: Lab, workload: str, args: dict[str, object]) -> None:
    job = read_plan(text(workload=workload, args=args), "plan.json", lab).job
    assert job is not None and job.args == args


@pytest.mark.parametrize("program", OPTIONS)
def test_what_a_plan_may_say_is_what_the_command_line_reads(program: str) -> None:
    """The program itself, not the table, is asked, on a machine without torch."""
    code = f"import sys; sys.modules['torch'] = None; import workloads.programs.{program} as p; p.main()"
    output = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout
    argv = {word.strip(",[]") for word in output.split() if word.strip(",[]").startswith("--")}
    assert argv == {
        "--help",
        *(f"--{option.name.replace('_', '-')}" for option in OPTIONS[program]),
    }


@pytest.mark.parametrize(
    "option",
    [option for options in OPTIONS.values() for option in options],
    ids=lambda option: option.name,
)
def test_every_default_is_a_value_the_option_takes(option: Option) -> None:
    assert option.default is None or option.takes(option.default)


def test_nccl_on_hosts_without_a_gpu_is_refused_before_anything_moves(lab: Lab) -> None:
    (problem,) = refused(lab, backend="nccl")
    assert (
        "job.backend: nccl needs a GPU on every host of the job; none on gpu01, gpu02 (testbed_gpus in hosts.yml)"
        in problem
    )


def test_what_nccl_lacks_is_refused_before_anything_moves(lab: Lab) -> None:
    with_gpus = replace(
        lab, hosts={name: replace(host, gpus=1) for name, host in lab.hosts.items()}
    )
    args = {"compress": "fp16", "exchange": "gloo"}
    for backend in ("nccl", "auto"):
        compress, exchange = refused(with_gpus, backend=backend, args=args)
        assert (
            "job.args.compress: fp16: nothing is built that compresses what NCCL carries"
            in compress
        )
        assert "job.args.exchange: gloo: where a job has GPUs NCCL carries its sums" in exchange
    read_plan(text(backend="gloo", args=args), "plan.json", with_gpus)


def test_averages_between_sites_need_the_site_of_every_host_and_more_than_one(lab: Lab) -> None:
    def at(*sites: str) -> Lab:
        named = dict(zip(("gpu01", "gpu02", "gpu03", "gpu04"), sites, strict=False))
        hosts = {name: replace(host, site=named.get(name, "")) for name, host in lab.hosts.items()}
        return replace(lab, hosts=hosts)

    (unknown,) = refused(at("east"), args={"site_every": 16})
    assert "site_every: no site is known of gpu02 (testbed_site in hosts.yml)" in unknown
    (alone,) = refused(at("east", "east"), args={"site_every": 16})
    assert "site_every: all hosts are of site east; leave it out" in alone
    there = at("east", "west", "east", "west")
    job = read_plan(text(args={"site_every": 16}), "plan.json", there).job
    assert job is not None
    assert requests(job, there, "r")["gpu02"]["env"]["TESTBED_SITES"] == '["east", "west"]'
    assert "TESTBED_SITES" not in requests(job, at("east"), "r")["gpu02"]["env"]


def test_a_ring_that_goes_between_sites_more_often_than_it_must_is_noted(lab: Lab) -> None:
    hosts = ["gpu01", "gpu02", "gpu03", "gpu04"]
    links = [{"a": a, "b": b} for a, b in pairwise([*hosts, "gpu01"])]
    document = json.loads(text(ranks=hosts, rings=[hosts])) | {"links": links}
    for sites, note in (
        (("a", "b", "a", "b"), ["the ring goes between sites 4 times; 2 would do"]),
        (("a", "a", "b", "b"), []),
        (("a", "b", "a", ""), []),
    ):
        named = {
            name: replace(lab.hosts[name], site=site)
            for name, site in zip(hosts, sites, strict=True)
        }
        plan = read_plan(json.dumps(document), "p.json", replace(lab, hosts={**lab.hosts, **named}))
        assert [each.rpartition(": ")[2] for each in plan.warnings if "sites" in each] == note


def test_a_job_is_the_same_training_on_other_rings_and_another_one_with_other_ranks_or_weights() -> (
    None
):
    job = Job("j", "train", ("a", "b", "c"), (("a", "b", "c"),), {"iterations": 5})
    same = [
        Job(
            "j",
            "train",
            ("c", "a", "b"),
            (),
            {"iterations": 0, "bucket_mb": 2.0, "checkpoint_every": 3},
        ),
        Job("j", "train", ("a", "b", "c"), (), {"seed": 1, "resume": True}, {"NCCL_ALGO": "Ring"}),
    ]
    deciding: dict[str, int | float | str] = {
        "compress": "fp16",
        "sync_every": 2,
        "site_every": 2,
        "outer_lr": 1,
        "batch": 4,
        "hidden": 64,
        "lr": 0.1,
        "seed": 2,
        "model": "cnn",
    }
    others = [
        Job("j", "train", ("a", "b"), (), {"iterations": 5}),
        Job("j", "train", ("a", "b", "d"), (), {"iterations": 5}),
        *(Job("j", "train", job.ranks, (), {name: value}) for name, value in deciding.items()),
        Job("j", "allreduce", job.ranks),
    ]
    assert {identity(other) for other in same} == {identity(job)}
    assert len({identity(other) for other in [job, *others]}) == 1 + len(others)
    assert identity(job) == "01de24a43a9c", (
        "as before there were compress and sync_every: checkpoints are kept under this name"
    )
