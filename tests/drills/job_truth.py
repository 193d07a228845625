"""A running job as its hosts see it: processes, records, turns. The program is asked nothing."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.end_to_end.conftest import Lab
from tests.workloads.ranks import ranks

HOSTS = [f"gpu{n:02d}" for n in range(1, 7)]
ADVANCE_S = 60.0
CHECKPOINTS = "/var/lib/testbed/checkpoints"


@dataclass(frozen=True)
class Launch:
    """One launch of a training. rings: rank orders at its begin. ring_changes: entries of
    TESTBED_RING_CHANGES. until: the last iteration that was kept: its last one, or the one that the
    next launch resumed after."""

    rings: Sequence[Sequence[int]]
    ring_changes: Sequence[Mapping[str, Any]]
    until: int


class Job:
    """A training job as its hosts see it: processes, records, turns; nothing is asked of the
    program.
    """

    def __init__(self, lab: Lab, name: str = "living") -> None:
        self.lab, self.name = lab, name
        self._launch = ""
        self._rings: dict[str, list[list[int]]] = {}  # launch -> the rings it began with

    def host(self, host: str) -> int:
        return int(self.lab.ask("status")["hosts"][host]["pid"])

    def host_or_none(self, host: str) -> int | None:
        """Its first process; None where it has no power."""
        pid = self.host(host)
        return pid if Path(f"/proc/{pid}/root").exists() else None

    def folder(self, host: str = HOSTS[0]) -> Path:
        """The directory of the newest launch on a host."""
        jobs = Path(f"/proc/{self.host(host)}/root/var/lib/testbed/jobs")
        return max(jobs.glob(f"{self.name}.*"), key=lambda each: each.stat().st_ctime_ns)

    def launch(self) -> str:
        """The name on the hosts of the newest launch; the last one known where rank 0's host has no
        power.
        """
        if self.host_or_none(HOSTS[0]):
            self._launch = self.folder().name
        return self._launch

    def records(self) -> dict[str, list[dict[str, Any]]]:
        """The iterations of each launch on rank 0's host, by the name of the launch; those without
        any are left out.
        """
        folders = self.folder().parent.glob(f"{self.name}.*")
        return {
            each.name: lines for each in folders if (lines := self.lines("iterations.jsonl", each))
        }

    def launches(self) -> list[Path]:
        """The directories on rank 0's host of all launches of the present training, from iteration
        1 on, the newest last.

        Raises: LookupError - its first launch is not there.
        """
        found = self.records()
        order = sorted(found, key=lambda name: int(found[name][0]["t_wall_ns"]))
        first = max(
            (i for i, name in enumerate(order) if found[name][0]["iter"] == 1), default=None
        )
        if first is None:
            raise LookupError(f"no launch of {self.name} began at iteration 1: {order}")
        return [self.folder().parent / name for name in order[first:]]

    def lines(self, file: str, folder: Path | None = None) -> list[dict[str, Any]]:
        """The whole lines of one of rank 0's files, of the newest launch unless told otherwise;
        none where it is not there.
        """
        try:
            text = ((folder or self.folder()) / file).read_text()
        except (FileNotFoundError, ValueError):
            return []
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def iteration(self) -> int:
        seen = self.lines("iterations.jsonl")
        return int(seen[-1]["iter"]) if seen else 0

    def advances(self, count: int = 3, within_s: float = ADVANCE_S) -> bool:
        """Whether the job finishes so many more iterations."""
        wanted, give_up = self.iteration() + count, time.monotonic() + within_s
        while self.iteration() < wanted and time.monotonic() < give_up:
            time.sleep(0.05)
        return self.iteration() >= wanted

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder() / "summary.json").read_text())
        return found

    def ranks(self, host: str) -> list[int]:
        """The processes of the job's rank on a host."""
        return [
            pid
            for pid, text in self._processes(host)
            if any(word.startswith("workloads.") for word in text)
        ]

    def taps(self, host: str) -> list[int]:
        """The processes that copy what comes to a host's ports."""
        return [pid for pid, _ in self._processes(host, "testbed-tap")]

    def receivers(self, host: str) -> list[int]:
        """The processes that keep the job's checkpoints on a host."""
        return [pid for pid, argv in self._processes(host) if "extensions.storage.rank" in argv]

    def agents(self, host: str) -> tuple[int, int]:
        """The watchdog of a host's agent and its daemon; zeros where none runs."""
        found = [
            pid
            for pid, argv in self._processes(host)
            if argv[-1] != "attach" and "agent/__main__.py" in " ".join(argv)
        ]
        parents = {pid: int(_stat(pid)[1]) for pid in found}
        # The daemon may have helpers, and these are its children as it is the watchdog's.
        daemons = [
            pid for pid in found if parents[pid] in found and parents[parents[pid]] not in found
        ]
        return (parents[daemons[0]], daemons[0]) if daemons else (0, 0)

    def _processes(self, host: str, kind: str = "python") -> list[tuple[int, list[str]]]:
        network = Path(f"/proc/{self.host(host)}/ns/net").readlink()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "ns" / "net").readlink() == network and kind in (
                    process / "comm"
                ).read_text():
                    found.append(
                        (
                            int(process.name),
                            (process / "cmdline").read_bytes().decode().rstrip("\0").split("\0"),
                        )
                    )
            except OSError:
                continue  # it is gone
        return found

    def rings(self) -> list[list[str]]:
        """The rings in use: of the last journalled turn, else those that the rank was launched
        with.
        """
        ring_changes = self.lines("ring_changes.jsonl")
        found = ring_changes[-1]["rings"] if ring_changes else self.begun_with()
        return [[HOSTS[rank] for rank in one] for one in found]

    def begun_with(self) -> list[list[int]]:
        """The rings with which the newest launch began; it runs, or was asked about when it did.
        Raises: LookupError - neither.
        """
        launch = self.folder().name
        for pid in self.ranks(HOSTS[0]):
            for word in Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0"):
                if word.startswith("TESTBED_RINGS="):
                    self._rings[launch] = json.loads(word.partition("=")[2])
        return self._rings[launch]

    def journalled(self) -> list[Launch]:
        """What the launches of the present training did, as far as the ones after them went on from
        it.

        Raises: LookupError - rings of a launch are not known.
        """
        begun: list[tuple[Path, int]] = []
        for folder in self.launches():
            after = int(self.lines("iterations.jsonl", folder)[0]["iter"]) - 1
            while begun and begun[-1][1] >= after:  # nothing of it was kept
                begun.pop()
            begun.append((folder, after))
        ends = [after for _, after in begun[1:]] + [
            int(self.lines("iterations.jsonl", begun[-1][0])[-1]["iter"])
        ]
        found = []
        for (folder, _), until in zip(begun, ends, strict=True):
            summary = folder / "summary.json"
            rings = (
                json.loads(summary.read_text())["rings"]
                if summary.exists()
                else self._rings[folder.name]
            )
            ring_changes = [
                {k: t[k] for k in ("after", "rings")}
                for t in self.lines("ring_changes.jsonl", folder)
                if t["after"] < until
            ]
            found.append(Launch(rings, ring_changes, until))
        return found

    def keep_disks(self, to: Path) -> None:
        """Copy the checkpoints of the hosts that have power: the lab keeps its hosts' disks in
        memory, and loses them with it.

        A copy that is there of a host without power stays.
        """
        for host in HOSTS:
            if pid := self.host_or_none(host):
                shutil.rmtree(to / host, ignore_errors=True)
                other = Path(f"/proc/{pid}/root{CHECKPOINTS}")
                for file in other.glob("*/*.pt"):
                    (to / host / file.parent.name).mkdir(parents=True, exist_ok=True)
                    # ranks drop what is older than their newest few
                    with suppress(FileNotFoundError):
                        shutil.copy(file, to / host / file.parent.name)

    def put_disks_back(self, kept: Path) -> None:
        for host in HOSTS:
            if (kept / host).exists():
                shutil.copytree(
                    kept / host, f"/proc/{self.host(host)}/root{CHECKPOINTS}", dirs_exist_ok=True
                )

    def gapless(self) -> list[str]:
        """What is wrong with the numbers of the iterations and ring changes."""
        numbers = [int(r["iter"]) for r in self.lines("iterations.jsonl")]
        found = (
            []
            if numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            else [f"iterations {numbers}"]
        )
        ring_changes = self.lines("ring_changes.jsonl")
        order = [(t["move"], t["after"]) for t in ring_changes]
        if order != sorted(order) or len({move for move, _ in order}) != len(order):
            found.append(f"turns {order}")
        marked = [(r["move"], r["iter"] - 1) for r in self.lines("iterations.jsonl") if "move" in r]
        if marked != [(move, after) for move, after in order if after < numbers[-1]]:
            found.append(f"records are marked with moves {marked}, the ring changes are {order}")
        return found

    def replayed(self, folder: Path, args: Mapping[str, object], launches: Sequence[Launch]) -> str:
        """The weights (SHA-256) of the same training on loopback, launched as often and with the
        same turns, without a lab.

        A launch must not be left out: torch lays out the buckets of gradients again in its second
        iteration, so it sums those of the first one in another order.
        """
        reply: dict[str, Any] = {}
        for number, launch in enumerate(launches):
            wanted = {**args, "iterations": launch.until, "checkpoint_every": launch.until}
            argv = [
                word
                for key, value in wanted.items()
                for word in (f"--{key.replace('_', '-')}", str(value))
            ]
            command = ("-m", "workloads.programs.train", *argv, *(["--resume"] if number else []))
            ring_changes = {"TESTBED_RING_CHANGES": json.dumps(launch.ring_changes)}
            with ranks(
                len(HOSTS),
                *command,
                directory=folder,
                rings=launch.rings,
                more=lambda _, ring_changes=ring_changes: ring_changes,
            ) as local:
                ended = local.finish(200 + 0.1 * launch.until)
                assert [code for code, _, _ in ended] == [0] * len(HOSTS), ended
            reply = json.loads((folder / "0" / "summary.json").read_text())
            assert reply["iterations"] == launch.until and reply["weights_identical"]
        return str(reply["weights_sha256"])


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
