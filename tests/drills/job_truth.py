"""A running job as its hosts see it: processes, records, turns. The program is asked nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.end_to_end.conftest import Lab
from tests.workloads.ranks import ranks

HOSTS = [f"gpu{n:02d}" for n in range(1, 7)]
ADVANCE_S = 60.0


class Job:
    """A training job as its hosts see it: processes, records, turns; nothing is asked of the program."""

    def __init__(self, lab: Lab, name: str = "living") -> None:
        self.lab, self.name = lab, name

    def host(self, host: str) -> int:
        return int(self.lab.ask("status")["hosts"][host]["pid"])

    def folder(self, host: str = HOSTS[0]) -> Path:
        """The directory of the newest launch on a host."""
        jobs = Path(f"/proc/{self.host(host)}/root/var/lib/testbed/jobs")
        return max(jobs.glob(f"{self.name}.*"), key=lambda each: each.stat().st_ctime_ns)

    def lines(self, file: str) -> list[dict[str, Any]]:
        """The whole lines of one of rank 0's files; none where it is not there."""
        try:
            text = (self.folder() / file).read_text()
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
        return [pid for pid, words in self._processes(host) if any(word.startswith("workloads.") for word in words)]

    def agents(self, host: str) -> tuple[int, int]:
        """The watchdog of a host's agent and its daemon."""
        found = [pid for pid, words in self._processes(host) if words[-1] != "attach" and "agent/__main__.py" in " ".join(words)]
        parents = {pid: int(_stat(pid)[1]) for pid in found}
        (daemon,) = [pid for pid in found if parents[pid] in found]
        return parents[daemon], daemon

    def _processes(self, host: str) -> list[tuple[int, list[str]]]:
        network = Path(f"/proc/{self.host(host)}/ns/net").readlink()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "ns" / "net").readlink() == network and "python" in (process / "comm").read_text():
                    found.append((int(process.name), (process / "cmdline").read_bytes().decode().rstrip("\0").split("\0")))
            except OSError:
                continue  # it is gone
        return found

    def rings(self) -> list[list[str]]:
        """The rings in use: of the last journalled turn, else those that the rank was launched with."""
        turns = self.lines("turns.jsonl")
        environ = [] if turns else [Path(f"/proc/{pid}/environ").read_bytes() for pid in self.ranks(HOSTS[0])]
        values = [word.decode() for one in environ for word in one.split(b"\0") if word.startswith(b"TESTBED_RINGS=")]
        found = turns[-1]["rings"] if turns else json.loads(values[0].partition("=")[2])
        return [[HOSTS[rank] for rank in one] for one in found]

    def gapless(self) -> list[str]:
        """What is wrong with the numbers of the iterations and turns."""
        numbers = [int(r["iter"]) for r in self.lines("iterations.jsonl")]
        found = [] if numbers == list(range(numbers[0], numbers[0] + len(numbers))) else [f"iterations {numbers}"]
        turns = self.lines("turns.jsonl")
        order = [(t["move"], t["after"]) for t in turns]
        if order != sorted(order) or len({move for move, _ in order}) != len(order):
            found.append(f"turns {order}")
        marked = [(r["move"], r["iter"] - 1) for r in self.lines("iterations.jsonl") if "move" in r]
        if marked != [(move, after) for move, after in order if after < numbers[-1]]:
            found.append(f"records are marked with moves {marked}, the turns are {order}")
        return found

    def replayed(self, folder: Path, args: Mapping[str, object], rings: Sequence[Sequence[str]], turns: object = None) -> str:
        """The weights (SHA-256) of the same training on loopback, with the turns as journalled (or these), without a lab."""
        count = int(self.summary()["iterations"])
        words = [word for key, value in args.items() for word in (f"--{key.replace('_', '-')}", str(value))]
        kept = [{k: t[k] for k in ("after", "rings")} for t in self.lines("turns.jsonl")] if turns is None else turns
        command = ("-m", "workloads.train", *words, "--iterations", str(count))
        order = [[HOSTS.index(host) for host in one] for one in rings]
        with ranks(
            len(HOSTS), *command, directory=folder, rings=order, more=lambda _: {"TESTBED_TURNS": json.dumps(kept)}
        ) as local:
            ended = local.finish(200)
            assert [code for code, _, _ in ended] == [0] * len(HOSTS), ended
        said = json.loads((folder / "0" / "summary.json").read_text())
        assert said["iterations"] == count and said["weights_identical"]
        return str(said["weights_sha256"])


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
