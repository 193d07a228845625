"""How ranks average: over which connections, compressed, seldom; a job goes on from its checkpoints
as if nothing had been.
"""

from __future__ import annotations

import json
import signal
import threading
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.workloads.programs.test_train import PAIR, TRAIN
from tests.workloads.ranks import ranks, records
from tests.workloads.test_living import NEW, OLD, WORLD, check_run, job, ring_changes, summary
from tests.workloads.training.test_compression import Rings, on_rings
from tests.workloads.transport.test_wires import together
from workloads.programs.options import OF_SITES, OPTIONS, conflicts
from workloads.programs.state import State
from workloads.programs.steps import round_end
from workloads.training.checkpoint import Checkpoints, Writer
from workloads.transport.buffers import pieces

NO_SITES: dict[str, Any] = {
    option.name: option.default for option in OPTIONS["train"] if option.name in OF_SITES
}
IN_SITES = {"TESTBED_SITES": json.dumps(["east", "west", "west", "east"])}


@pytest.mark.parametrize("world", [2, 3, 4])
def test_sums_are_those_of_gloo_where_the_order_of_addition_does_not_matter(world: int) -> None:
    """Which is where two numbers are added, or whole ones."""
    order = [0, 2, 1, 3][:world] if world > 2 else [0, 1]
    shared = torch.distributed.HashStore()
    draws = [torch.Generator().manual_seed(rank) for rank in range(world)]
    given = [
        (
            torch.randn(10_000, generator=g),
            torch.randint(-1 << 20, 1 << 20, (10_000,), generator=g).float(),
        )
        for g in draws
    ]

    def rank(me: int, rings: Rings) -> list[list[Any]]:
        options = torch.distributed.ProcessGroupGloo._Options()
        options._devices = [torch.distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        gloo = torch.distributed.ProcessGroupGloo(shared, me, world, options)
        found = []
        for numbers in given[me]:
            wires, other = numbers.clone(), numbers.clone()
            for work in (*rings.start(wires), gloo.allreduce([other])):
                work.wait()
            found.append([wires, other])
        return found

    found = on_rings(rank, [order], world)
    assert all(
        torch.equal(found[0][k][path], other[k][path])
        for other in found[1:]
        for k in range(2)
        for path in range(2)
    )
    (wires, gloo), (whole_wires, whole_gloo) = found[0]
    assert torch.equal(whole_wires, whole_gloo)
    assert torch.equal(wires, gloo) == (world == 2) and torch.allclose(
        wires, gloo, rtol=0, atol=2e-6
    )
    # a chunk starts with the rank at its place of the ring
    for chunk, (begin, end) in enumerate(pieces(10_000, world)):
        total, *others = (
            given[order[(chunk + step) % world]][0][begin:end] for step in range(world)
        )
        for more in others:
            total = total + more
        assert torch.equal(wires[begin:end], total)


@pytest.mark.parametrize(
    "options",
    [
        ("--compress", "topk:0.05", "--checkpoint", "async"),
        pytest.param(("--compress", "fp16"), marks=pytest.mark.long),
        pytest.param(("--compress", "powersgd:2"), marks=pytest.mark.long),
        pytest.param(("--compress", "topk:0.05", "--sync-every", "3"), marks=pytest.mark.long),
        pytest.param(("--sync-every", "3", "--exchange", "gloo"), marks=pytest.mark.long),
    ],
)
def test_a_job_resumes_as_if_it_had_never_stopped(tmp_path: Path, options: tuple[str, ...]) -> None:
    command = (*TRAIN, "--iterations", "6", "--checkpoint-every", "3", *options)
    with ranks(2, *command, directory=tmp_path, rings=PAIR) as running:
        assert [(code, err) for code, _, err in running.finish()] == [(0, "")] * 2
    straight = summary(tmp_path)
    assert straight["weights_identical"]
    for rank in range(2):
        (tmp_path / str(rank) / f"checkpoint-{rank}-6.pt").unlink()
    with ranks(2, *command, "--resume", directory=tmp_path, rings=PAIR) as running:
        assert [(code, err) for code, _, err in running.finish()] == [(0, "")] * 2
    again = summary(tmp_path)
    assert (again["resumed_from"], again["own_state_lost"]) == (3, 0)
    assert again["weights_sha256"] == straight["weights_sha256"]


@pytest.mark.long
@pytest.mark.parametrize("sync", ["1", "2"])
def test_a_change_of_rings_loses_nothing_that_was_left_out(tmp_path: Path, sync: str) -> None:
    changed = json.dumps([{"after": 4, "rings": [[0, 2, 1]]}])
    sums = []
    for name, more in (("changed", {"TESTBED_RING_CHANGES": changed}), ("stayed", {})):
        command = (*TRAIN, "--iterations", "10", "--compress", "topk:0.5", "--sync-every", sync)
        with ranks(
            3,
            *command,
            directory=tmp_path / name,
            rings=[[0, 1, 2]],
            more=lambda _, more=more: more,
        ) as running:  # type: ignore[misc]
            assert [(code, err) for code, _, err in running.finish()] == [(0, "")] * 3
        sums.append(summary(tmp_path / name)["weights_sha256"])
    assert [ring_change["after"] for ring_change in ring_changes(tmp_path / "changed")] == [4]
    assert sums[0] == sums[1], "the largest numbers are added in the order of ranks"


@pytest.mark.long
@pytest.mark.parametrize("options", [("--compress", "powersgd:1"), ("--sync-every", "2")])
def test_a_rank_whose_own_state_is_gone_goes_on_without_and_it_is_said(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    command = (*TRAIN, "--checkpoint-every", "2", *options)
    with ranks(3, *command, "--iterations", "4", directory=tmp_path, rings=[[0, 1, 2]]) as running:
        assert [(code, err) for code, _, err in running.finish()] == [(0, "")] * 3
    for path in (tmp_path / "1").glob("checkpoint-*"):
        path.unlink()  # a new host
    # the host had another rank
    (tmp_path / "2" / "checkpoint-2-4.pt").rename(tmp_path / "2" / "checkpoint-0-4.pt")
    with ranks(
        3, *command, "--iterations", "7", "--resume", directory=tmp_path, rings=[[0, 1, 2]]
    ) as running:
        assert [(code, err) for code, _, err in running.finish()] == [(0, "")] * 3
    reply = summary(tmp_path)
    assert (
        reply["weights_identical"] and reply["own_state_lost"] == 2 and reply["resumed_from"] == 4
    )


def test_sites_average_their_changes_and_all_ranks_then_hold_the_same_weights(
    tmp_path: Path,
) -> None:
    command = (*TRAIN, "--iterations", "6", "--checkpoint-every", "3")
    sums, wide = {}, {}
    for name, options in (
        ("all", ("--site-every", "3")),
        ("some", ("--site-every", "3", "--site-share", "0.5")),
        ("again", ("--site-every", "3", "--site-share", "0.5", "--resume")),
    ):
        directory = tmp_path / ("some" if name == "again" else name)
        with ranks(
            4,
            *command,
            *options,
            directory=directory,
            rings=[[0, 1, 2, 3]],
            more=lambda _: IN_SITES,
        ) as running:
            assert [(code, err) for code, _, err in running.finish()] == [(0, "")] * 4
        found = summary(directory)
        assert found["weights_identical"] and found["resumed_from"] == 3 * (name == "again")
        sums[name], wide[name] = found["weights_sha256"], found["wide_bytes"]
        for rank in range(4):
            (directory / str(rank) / f"checkpoint-{rank}-6.pt").unlink()
    assert sums["again"] == sums["some"] != sums["all"]
    # twice, over both steps of the ring that leave a site, 3/2 of all weights
    size = 4 * found["parameters"]
    assert wide["all"] == pytest.approx(2 * 2 * 1.5 * size, rel=1e-3)
    assert [line["wide_bytes"] for line in records(tmp_path / "all")] == [
        pytest.approx(1.5 * size * (n % 3 == 0), rel=1e-3) for n in range(1, 7)
    ]


def test_sites_that_take_the_average_of_every_iteration_train_as_ranks_that_are_all_alike(
    tmp_path: Path,
) -> None:
    plain = ("--site-every", "1", "--outer-lr", "1", "--outer-momentum", "0")
    losses = []
    for name, options in (("alike", ()), ("sites", plain)):
        command = (*TRAIN, "--iterations", "6", *options)
        with ranks(
            4, *command, directory=tmp_path / name, rings=[[0, 1, 2, 3]], more=lambda _: IN_SITES
        ) as running:
            assert [(code, err) for code, _, err in running.finish()] == [(0, "")] * 4
        losses.append([line["loss"] for line in records(tmp_path / name)])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5) and len(set(losses[0])) == 6


def test_a_site_that_is_not_said_or_not_averaged_with_is_refused(tmp_path: Path) -> None:
    with ranks(1, *TRAIN, "--site-every", "2", directory=tmp_path) as running:
        [(code, _, err)] = running.finish()
    assert code == 2 and "TESTBED_SITES does not say which site each rank is in" in err

    def wrong(nccl: bool = False, **args: object) -> list[str]:
        return [name for name, _ in conflicts("train", args, nccl)]

    assert wrong(site_every=8) == wrong(outer_lr=0.7) == []
    assert wrong(outer_lr=1.0, site_share=0.5) == ["outer_lr", "site_share"]
    assert wrong(site_every=8, sync_every=2) == ["sync_every"]
    assert wrong(site_every=8, exchange="gloo") == wrong(True, site_every=8) == ["site_every"]
    assert wrong(site_every=8, site_share=0.5, compress="fp16") == ["site_share"]


def test_only_a_rank_without_a_checkpoint_is_given_the_state_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, meet, sent = 1, threading.Barrier(3), list[Any]()
    gathered: dict[str, dict[int, object]] = {}

    def state(me: int, resume: bool) -> tuple[State, list[Any]]:
        def gather(topic: str, value: object) -> list[object]:
            gathered.setdefault(topic, {})[me] = value
            meet.wait()
            return [gathered[topic][rank] for rank in range(3)]

        def broadcast(tensor: Any, source: int) -> None:
            if me == source:
                sent.append(tensor)
            meet.wait()
            tensor.copy_(sent[-1])
            meet.wait()

        arguments = Namespace(
            model="mlp",
            hidden=0,
            seed=1,
            lr=0.1,
            compress="topk:0.1",
            sync_every=4,
            **NO_SITES,
            resume=resume,
            checkpoint="sync",
            iterations=9,
        )
        own = SimpleNamespace(no_grad=torch.no_grad, save=torch.save, load=torch.load)
        own.distributed = SimpleNamespace(broadcast=broadcast)
        rank = SimpleNamespace(rank=me, job_dir=tmp_path / str(me), storage_mbps=0.0)
        by = SimpleNamespace(residuals=[torch.full((2,), me + 0.5)], common=[])
        tensors = [torch.full((2,), 7.0)], [torch.full((2,), float(me))]
        found = State(
            SimpleNamespace(accord=SimpleNamespace(gather=gather), place=rank, torch=own),
            arguments,
            *tensors,
            by,
        )  # type: ignore[arg-type]
        return found, [*tensors[0], *tensors[1], *by.residuals]

    def rank(me: int) -> tuple[int, int, list[float]]:
        written, _ = state(me, resume=False)
        if me != new:
            written.write(4)
        found, tensors = state(me, resume=True)
        for tensor in tensors:
            tensor.zero_()
        return found.restore(), found.own_lost, [float(tensor[0]) for tensor in tensors]

    assert together(3, rank) == [(4, 1, [7, 0, 0.5]), (4, 1, [7, 0, 0]), (4, 1, [7, 2, 2.5])]


@pytest.mark.parametrize("compress", ["none", "fp16"])
def test_a_checkpoint_from_before_there_was_compression_is_one_without(
    tmp_path: Path, compress: str
) -> None:
    arguments = Namespace(
        model="mlp",
        hidden=0,
        seed=1,
        lr=0.1,
        compress=compress,
        sync_every=1,
        **NO_SITES,
        resume=True,
        checkpoint="sync",
    )
    old = {
        "model": "mlp",
        "hidden": 0,
        "seed": 1,
        "parameters": [torch.ones(2)],
        "momentum": [torch.ones(2)],
        "iteration": 4,
    }
    torch.save(old, tmp_path / "checkpoint-0-4.pt")
    place = SimpleNamespace(rank=0, job_dir=tmp_path, storage_mbps=0.0)
    by = SimpleNamespace(residuals=[] if compress == "none" else [torch.zeros(2)], common=[])
    accord = SimpleNamespace(gather=lambda _, value: [value])
    weights = torch.zeros(2)
    state = State(
        SimpleNamespace(accord=accord, place=place, torch=torch),
        arguments,
        [weights],
        [torch.zeros(2)],
        by,
    )  # type: ignore[arg-type]
    if compress == "none":
        assert (state.restore(), weights.tolist()) == (4, [1, 1])
    else:
        with pytest.raises(
            ValueError, match="was made with compress 'none', this job has compress 'fp16'"
        ):
            state.restore()


@pytest.mark.long
def test_ranks_that_average_seldom_turn_and_stop_where_they_do(tmp_path: Path) -> None:
    command = (
        "-m",
        "workloads.programs.train",
        "--hidden",
        "64",
        "--batch",
        "4",
        "--iterations",
        "0",
        "--sync-every",
        "4",
    )
    with job(tmp_path, *command, "--checkpoint-every", "6") as (running, asked):
        asked.ask("prepare", 1, lease_s=60, rings=NEW)
        asked.until("prepared", move=1)
        asked.ask("hold", 1, lease_s=60)
        held = {each["iteration"] for each in asked.until("held", move=1)}
        asked.ask("go", 1, decide=True)
        done = asked.until("changed", "void", move=1)
        assert {each["state"] for each in done} == {"changed"} and {
            each["after"] for each in done
        } == held
        asked.ask("prepare", 2, lease_s=60, rings=OLD)
        asked.until("prepared", move=2)
        asked.ask("go", 2, decide=True)  # without a hold: the first rank that hears of it says when
        assert {each["state"] for each in asked.until("changed", "void", move=2)} == {"changed"}
        running.signal(signal.SIGTERM, only=[1])
        assert [(code, err) for code, _, err in running.finish()] == [(0, "")] * WORLD
    check_run(tmp_path)
    reply, seen = summary(tmp_path), records(tmp_path)
    assert (
        all(ring_change["after"] % 4 == 0 for ring_change in ring_changes(tmp_path))
        and len(ring_changes(tmp_path)) == 2
    )
    assert reply["iterations"] % 4 == 0 and reply["stopped"]
    assert all(("bytes" in record) == (record["iter"] % 4 == 0) for record in seen), (
        "in between nothing is sent"
    )
    kept = {int(path.stem.split("-")[2]) for path in tmp_path.glob("*/checkpoint-*")}
    assert reply["iterations"] in kept and all(iteration % 4 == 0 for iteration in kept)


@pytest.mark.long
def test_turns_between_two_averages_are_refused(tmp_path: Path) -> None:
    wanted = json.dumps([{"after": 6, "rings": [[0]]}])
    with ranks(
        1,
        *TRAIN,
        "--sync-every",
        "4",
        directory=tmp_path,
        more=lambda _: {"TESTBED_RING_CHANGES": wanted},
    ) as running:
        [(code, _, err)] = running.finish()
    assert (
        code == 2
        and "TESTBED_RING_CHANGES: after 6: with sync_every 4 ranks change after every 4 iterations"
        in err
    )


def test_ranks_agree_after_every_round_and_after_the_last_iteration() -> None:
    assert [round_end(iteration, 4, 6) for iteration in range(1, 7)] == [4, 4, 4, 4, 6, 6]
    assert [round_end(iteration, 1, 0) for iteration in (1, 2, 9)] == [1, 2, 9]


def test_what_nccl_lacks_is_refused() -> None:
    assert [
        name for name, _ in conflicts("train", {"exchange": "gloo", "compress": "fp16"}, nccl=True)
    ] == ["exchange", "compress"]
    assert not list(conflicts("train", {"sync_every": 8}, nccl=True))
    assert not list(conflicts("train", {"exchange": "gloo", "compress": "topk:0.1"}, nccl=False))


def test_a_thread_writes_what_was_there_when_it_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, may, tensor = Checkpoints(tmp_path, 0, torch), threading.Event(), torch.ones(3)
    honest = Checkpoints.write

    def slow(self: Checkpoints, iteration: int, state: dict[str, Any]) -> Path:
        assert may.wait(10)
        return honest(self, iteration, state)

    monkeypatch.setattr(Checkpoints, "write", slow)
    writer = Writer(checkpoints)
    path = writer.write(5, {"model": "mlp", "parameters": [tensor]})
    tensor.zero_()  # training goes on
    assert not path.exists()
    may.set()
    writer.finish()
    assert checkpoints.read(5)["parameters"][0].tolist() == [1, 1, 1]

    def full(self: Checkpoints, iteration: int, state: dict[str, Any]) -> Path:
        raise OSError("no space left")

    monkeypatch.setattr(Checkpoints, "write", full)
    writer.write(6, {"parameters": [tensor]})
    with pytest.raises(OSError, match="no space left"):
        writer.write(7, {"parameters": [tensor]})
    assert checkpoints.kept() == [5]
