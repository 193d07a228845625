"""The hosts of a lab: Ansible for what takes its time (provision, stage, launch, collect), persistent channels for the rest."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from optics import Garbled, HostName, Refused
from optics.plan import Job
from optics.ranks import RankName, by_host, host_of_rank
from orchestrator.credentials import withheld
from orchestrator.fabric.rules import Rules
from orchestrator.hosts import facts, launch, render
from orchestrator.hosts.api import Hello, JobState, Provisioned, Staged, Tail
from orchestrator.hosts.channel import Channel, refusal
from orchestrator.hosts.failures import one_error
from orchestrator.hosts.launch import on_host
from orchestrator.hosts.measurements import Measurements
from orchestrator.hosts.readiness import Readiness
from orchestrator.hosts.routes import Routes
from orchestrator.hosts.runner import Ansible, Play
from orchestrator.hosts.slots import Slots
from orchestrator.hosts.turns import Turns
from orchestrator.inventory.lab import Lab
from orchestrator.settings import BOUNDS

UNUSED = '{"unused": true}'  # what stop_job.yml prints of a host that ran no agent since it started


class Hosts(Routes, Measurements, Turns, Slots, Readiness):
    """All hosts of a lab: Ansible for slow operations. `inventory`: the directory with hosts.yml. `artefacts`: for files.

    at_once: as `Channels`, and so many processes of Ansible.
    """

    def __init__(self, lab: Lab, inventory: Path, artefacts: Path, at_once: int = BOUNDS.at_once) -> None:
        super().__init__(lab, at_once)
        self.inventory, self.artefacts = inventory, artefacts
        self._ansible = Ansible(inventory, artefacts, withheld(lab), at_once)
        self._playing = asyncio.Lock()

    async def __aenter__(self) -> Hosts:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every channel and Ansible's connections. Agents, routes and jobs stay."""
        ansible = asyncio.get_running_loop().run_in_executor(self._threads, self._ansible.close)

        async def close(channel: Channel) -> None:
            async with self._at_once.room():
                await channel.close()

        await asyncio.gather(ansible, *map(close, self._channels.values()))
        self._threads.shutdown(wait=False)

    # --- through Ansible

    def expect_play(self) -> None:
        """Have Ansible start now: routes are likely to be staged. Raises: Missing - it is not installed."""
        self._ansible.expect("stage_rules.yml")

    async def provision(self, names: Collection[HostName] | None = None) -> Mapping[HostName, Provisioned]:
        """Install and start the agent, apply the host's facts, and attach. Idempotent."""
        names = self._names(names)
        if not names:
            return {}
        # A slice has the facts of its host, whose agent provides for all slices.
        machines = {name: self.lab.hosts[self.lab.hosts[name].machine] for name in names}
        payloads = {host.name: render.pack(facts.facts(host), host.name) for host in machines.values()}
        play = await self._play(
            "provision.yml",
            list(payloads),
            {"testbed_archive": list(facts.archive()), "testbed_archive_digest": facts.archive_digest(), "testbed_facts": payloads},
        )
        found = {}
        for name in names:
            done, started = _lines(name, play.said[machines[name].name]["provision"], 2)
            found[name] = Provisioned(name, tuple(done["changed"]), tuple(done["notes"]), started["started"])
        failed = {name: hello for name, hello in (await self.connect(names)).items() if not isinstance(hello, Hello)}
        failed |= {
            name: Refused(f"{name}: provisioned, but its agent does not answer")
            for name in names
            if name not in failed and not self.hellos[name].installed
        }
        if failed:
            raise one_error(failed, len(names) - len(failed))
        return found

    async def stage(self, generations: Mapping[int, Mapping[HostName, Rules]]) -> Mapping[HostName, Mapping[int, Staged]]:
        """Put route generations into tables that no rule selects yet, all in one play."""
        payloads = render.payloads(generations, self._token())
        if not payloads:
            return {}
        play = await self._play(
            "stage_rules.yml", list(payloads), {"testbed_agent": self._agents(payloads), "testbed_rules": payloads}
        )
        found: dict[HostName, dict[int, Staged]] = {}
        for name in payloads:
            wanted = [g for g, hosts in sorted(generations.items()) if name in hosts]
            lines = _lines(name, play.said[name]["stage"], len(wanted))
            found[name] = {v["generation"]: Staged(v["generation"], v["routes"], v["table"], v.get("congctl")) for v in lines}
        return found

    async def launch(
        self,
        job: Job,
        run: str,
        *,
        resume: bool = False,
        fresh: Collection[HostName] = (),
        extra: launch.Extra | None = None,
    ) -> Mapping[RankName, JobState]:
        """Start the ranks of a job; `run` makes its name there unique. fresh, extra: as `launch.requests`."""
        await self.make_ready(job)
        wanted = launch.requests(job, self.lab, run, resume=resume, fresh=fresh, extra=extra)
        payloads = launch.payloads({rank: request | self._token() for rank, request in wanted.items()})
        play = await self._play(
            "launch.yml", list(payloads), {"testbed_agent": self._agents(payloads), "testbed_requests": payloads}
        )
        answers = _answers(play, "launch", wanted)
        return {rank: JobState(host_of_rank(rank), "running", pid=values["pid"]) for rank, values in answers.items()}

    async def collect(self, job: str, names: Collection[HostName] | None = None) -> Mapping[HostName, Path]:
        """Copy the job's files into `artefacts/HOST/`; returns each host's folder."""
        names = self._names(names)
        play = await self._play("collect.yml", names, {"testbed_agent": self._agents(names), "testbed_job": job})
        found = {}
        for name in names:
            archive = base64.b64decode(_lines(name, play.said[name]["collect"], 1)[0]["archive"])
            _unpack(archive, self.artefacts / name)
            found[name] = self.artefacts / name / job
        return found

    async def _play(self, playbook: str, names: Collection[HostName], variables: Mapping[str, Any]) -> Play:
        play = Play()
        async with self._playing:
            for hosts in self._on_machines(names):
                machines = {name: machine for machine, name in hosts.items()}
                given = {key: _renamed(value, machines) for key, value in variables.items()}
                run = partial(self._ansible.play, playbook, list(hosts), given)
                playing = asyncio.get_running_loop().run_in_executor(self._threads, run)
                try:
                    done = await asyncio.shield(playing)
                except asyncio.CancelledError:  # it goes on: whoever comes next is to find what it leaves, and not before it does
                    await asyncio.wait([playing])
                    raise
                play.said |= _renamed(done.said, hosts)
                play.failed |= _renamed(done.failed, hosts)
        if play.failed:
            raise one_error(play.failed, len(names) - len(play.failed))
        return play

    def _agents(self, names: Collection[HostName]) -> dict[HostName, str]:
        """What the command to each host's agent begins with."""
        return {name: facts.own_agent(self.lab.hosts[name]) for name in names}

    def _on_machines(self, names: Collection[HostName]) -> Iterator[dict[HostName, HostName]]:
        """The hosts by the names of their machines, which Ansible knows; more than once where several are slices of one machine."""
        rounds: list[dict[HostName, HostName]] = [{}]
        for name in names:
            machine = self.lab.hosts[name].machine
            if all(machine in each for each in rounds):
                rounds.append({})
            next(each for each in rounds if machine not in each)[machine] = name
        yield from rounds

    # --- jobs, over the channel; ranks None: one on each host

    async def job_states(self, job: str, ranks: Collection[RankName] | None = None) -> Mapping[RankName, JobState]:
        """The state of each rank of a job; `job` is its name on the hosts (`launch.job_name`)."""
        return _job_states(await self._of_job(job, self._names(ranks), "job.status", {}))

    async def stop_job(
        self, job: str, grace_s: float = 10.0, ranks: Collection[RankName] | None = None
    ) -> Mapping[RankName, JobState]:
        """SIGTERM to every rank, SIGKILL to those that still run after `grace_s`; through Ansible if the channel is lost.

        On a host that ran no agent since it started, or was installed anew, the ranks are absent.
        """
        fields = {"grace_s": grace_s}
        lost = [rank for rank in self._names(ranks) if not self._channels[host_of_rank(rank)].attached]
        near = [rank for rank in self._names(ranks) if rank not in lost]
        answers = await self._of_job(job, near, "job.stop", fields, grace_s + 5.0)
        if lost:
            requests = {rank: {"op": "job.stop", "name": on_host(job, rank)} | fields | self._token() for rank in lost}
            payloads = launch.payloads(requests)
            play = await self._play(
                "stop_job.yml", list(payloads), {"testbed_agent": self._agents(payloads), "testbed_requests": payloads}
            )
            unused = {host for host in by_host(lost) if play.said[host]["stop"].strip() == UNUSED}
            answers |= _answers(play, "stop", [rank for rank in lost if host_of_rank(rank) not in unused])
            answers |= {rank: {"state": "absent"} for rank in lost if host_of_rank(rank) in unused}
        return _job_states(answers)

    async def tail(self, job: str, rank: RankName, file: str = "log", offset: int = 0) -> Tail:
        """A part of one of the files of the job's rank, from byte `offset` on (negative: from the end)."""
        values = (await self._of_job(job, [rank], "job.tail", {"file": file, "offset": offset}))[rank]
        return Tail(values["data"], values["offset"], values["size"], values["state"])


def _answers(play: Play, task: str, ranks: Collection[RankName]) -> dict[RankName, dict[str, Any]]:
    """The answers to `launch.payloads`, which the task printed. Raises: Garbled, Refused - as `_lines`."""
    return {
        rank: values
        for host, here in by_host(ranks).items()
        for rank, values in zip(here, _lines(host, play.said[host][task], len(here)), strict=True)
    }


def _renamed(value: Any, by: Mapping[HostName, HostName]) -> Any:
    """A mapping by host with other names of the hosts, without those that have none; anything else as it is."""
    return {by[name]: each for name, each in value.items() if name in by} if isinstance(value, Mapping) else value


def _job_states(answers: Mapping[RankName, Mapping[str, Any]]) -> dict[RankName, JobState]:
    return {rank: JobState(host_of_rank(rank), v["state"], v.get("code"), v.get("pid")) for rank, v in answers.items()}


def _lines(host: HostName, text: str, count: int) -> list[dict[str, Any]]:
    """The JSON lines that an agent printed. Raises: Garbled - not that many. Refused - one of them is a refusal."""
    try:
        found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    except ValueError:
        found = []
    for values in found:
        if not values.get("ok", True):
            raise refusal(host, values)
    if len(found) != count:
        raise Garbled(f"{host}: its agent printed {text[:300]!r} where {count} lines of JSON were wanted")
    return found


def _unpack(archive: bytes, folder: Path) -> None:
    """Extract the plain files of a tar archive below `folder`, wherever their names point (Python 3.11.2 has no filter)."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            path = (folder / member.name).resolve()
            if (content := tar.extractfile(member) if member.isreg() else None) is not None and folder.resolve() in path.parents:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
