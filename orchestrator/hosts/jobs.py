"""Jobs on the hosts: made ready, launched and collected through Ansible; looked at and stopped over
the channels.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import tarfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from optics import BadFile, HostName
from optics.plan import Job
from optics.ranks import RankName, by_host, host_of_rank
from orchestrator.hosts import launch, program
from orchestrator.hosts.api import JobState, Tail
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.launch import on_host
from orchestrator.hosts.plays import Plays, lines
from orchestrator.hosts.runner import Play

UNPACK_S = 60.0
"""How long (s) hosts may take to write the files of a program."""
UNUSED = '{"unused": true}'  # what stop_job.yml prints of a host that ran no agent since it started


class HostJobs:
    """Jobs of all hosts. `job` is a job's name there (`launch.job_name`); ranks None: one on each
    host.
    """

    def __init__(self, channels: Channels, plays: Plays) -> None:
        self.channels, self.plays = channels, plays

    async def make_ready(self, job: Job | None) -> tuple[HostName, ...]:
        """See that the hosts of a job have what its program needs; copy its files to those without,
        and return these hosts.

        Raises: Refused - a host cannot, or a directory or a user is missing, with the names of the
        hosts. BadFile - the files changed meanwhile. Infeasible - the program is not declared any
        more.
        """
        if job is None or not job.program:
            return ()
        wanted = program.of(job, self.channels.lab)
        answers = await self.channels.ask_all(job.hosts, "job.ready", program.needs(wanted))
        missing = tuple(name for name, values in answers.items() if values["files"] is False)
        if not missing:
            return ()
        content = program.files_of(wanted, self.plays.inventory)
        if hashlib.sha256(content).hexdigest() != wanted.digest:
            raise BadFile(
                [f"{wanted.files}: the files changed while this command ran"],
                hint="the same command again",
            )
        packed = gzip.compress(content, 6, mtime=0)
        for offset in range(0, len(packed), program.PIECE):
            piece = packed[offset : offset + program.PIECE]
            last = offset + len(piece) == len(packed)
            data = base64.b64encode(piece).decode()
            await self.channels.ask_all(
                missing,
                "job.files",
                {"files": wanted.digest, "offset": offset, "data": data, "last": last},
                UNPACK_S,
            )
        return missing

    async def launch(
        self,
        job: Job,
        run: str,
        *,
        resume: bool = False,
        fresh: Collection[HostName] = (),
        extra: launch.Extra | None = None,
        only: Collection[RankName] | None = None,
    ) -> Mapping[RankName, JobState]:
        """Start the ranks of a job, or only some; `run` makes its name there unique. fresh, extra:
        as `launch.requests`.
        """
        await self.make_ready(job)
        asked = launch.requests(
            job, self.channels.lab, run, resume=resume, fresh=fresh, extra=extra
        )
        wanted = {rank: each for rank, each in asked.items() if only is None or rank in only}
        payloads = launch.launch_payloads(
            {rank: request | self.channels.run_token() for rank, request in wanted.items()}
        )
        play = await self.plays.play(
            "launch.yml",
            list(payloads),
            {"testbed_agent": self.plays.agents(payloads), "testbed_requests": payloads},
        )
        answers = _answers(play, "launch", wanted)
        return {
            rank: JobState(host_of_rank(rank), "running", pid=values["pid"])
            for rank, values in answers.items()
        }

    async def states(
        self, job: str, ranks: Collection[RankName] | None = None
    ) -> Mapping[RankName, JobState]:
        """The state of each rank of a job."""
        return _states(
            await self.channels.ask_ranks(job, self.channels.names(ranks), "job.status", {})
        )

    async def stop(
        self, job: str, grace_s: float = 10.0, ranks: Collection[RankName] | None = None
    ) -> Mapping[RankName, JobState]:
        """SIGTERM to every rank, SIGKILL to those that still run after `grace_s`; through Ansible
        if the channel is lost.

        On a host that ran no agent since it started, or was installed again, the ranks are absent.
        """
        fields = {"grace_s": grace_s}
        attached = self.channels.attached()
        lost = [rank for rank in self.channels.names(ranks) if host_of_rank(rank) not in attached]
        near = [rank for rank in self.channels.names(ranks) if rank not in lost]
        answers = await self.channels.ask_ranks(job, near, "job.stop", fields, grace_s + 5.0)
        if lost:
            requests = {
                rank: {"op": "job.stop", "name": on_host(job, rank)}
                | fields
                | self.channels.run_token()
                for rank in lost
            }
            payloads = launch.launch_payloads(requests)
            play = await self.plays.play(
                "stop_job.yml",
                list(payloads),
                {"testbed_agent": self.plays.agents(payloads), "testbed_requests": payloads},
            )
            unused = {
                host for host in by_host(lost) if play.reported[host]["stop"].strip() == UNUSED
            }
            answers |= _answers(
                play, "stop", [rank for rank in lost if host_of_rank(rank) not in unused]
            )
            answers |= {rank: {"state": "absent"} for rank in lost if host_of_rank(rank) in unused}
        return _states(answers)

    async def tail(self, job: str, rank: RankName, file: str = "log", offset: int = 0) -> Tail:
        """A part of one of the files of the job's rank, from byte `offset` on (negative: from the
        end).
        """
        values = (
            await self.channels.ask_ranks(job, [rank], "job.tail", {"file": file, "offset": offset})
        )[rank]
        return Tail(values["data"], values["offset"], values["size"], values["state"])

    async def collect(
        self, job: str, names: Collection[HostName] | None = None
    ) -> Mapping[HostName, Path]:
        """Copy the job's files into `artefacts/HOST/`; returns each host's folder."""
        names = self.channels.names(names)
        play = await self.plays.play(
            "collect.yml", names, {"testbed_agent": self.plays.agents(names), "testbed_job": job}
        )
        found = {}
        for name in names:
            archive = base64.b64decode(lines(name, play.reported[name]["collect"], 1)[0]["archive"])
            _unpack(archive, self.plays.artefacts / name)
            found[name] = self.plays.artefacts / name / job
        return found


def _answers(play: Play, task: str, ranks: Collection[RankName]) -> dict[RankName, dict[str, Any]]:
    """The answers to `launch_payloads`, which the task printed. Raises: Garbled, Refused - as
    `lines`.
    """
    return {
        rank: values
        for host, here in by_host(ranks).items()
        for rank, values in zip(
            here, lines(host, play.reported[host][task], len(here)), strict=True
        )
    }


def _states(answers: Mapping[RankName, Mapping[str, Any]]) -> dict[RankName, JobState]:
    return {
        rank: JobState(host_of_rank(rank), v["state"], v.get("code"), v.get("pid"))
        for rank, v in answers.items()
    }


def _unpack(archive: bytes, folder: Path) -> None:
    """Extract the plain files of a tar archive below `folder`, wherever their names point (Python
    3.11.2 has no filter).
    """
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            path = (folder / member.name).resolve()
            if (
                content := tar.extractfile(member) if member.isreg() else None
            ) is not None and folder.resolve() in path.parents:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
