"""What a job needs on the hosts before it can be started: checked there, and files of the owner's programs copied."""

from __future__ import annotations

import base64
import gzip
import hashlib
from pathlib import Path

from optics import BadFile, HostName
from optics.plan import Job
from orchestrator.hosts import program
from orchestrator.hosts.channels import Channels

UNPACK_S = 60.0
"""How long (s) hosts may take to write the files of a program."""


class Readiness(Channels):
    """inventory: the directory that files of programs are relative to."""

    inventory: Path

    async def make_ready(self, job: Job | None) -> tuple[HostName, ...]:
        """See that the hosts of a job have what its program needs; copy the program's files to those without, and return these
        hosts.

        Raises: Refused - a host cannot, or a directory or a user is missing, with the names of the hosts. BadFile - the files
        changed meanwhile. Infeasible - the program is not declared any more.
        """
        if job is None or not job.program:
            return ()
        wanted = program.of(job, self.lab)
        answers = await self._all(job.hosts, "job.ready", program.needs(wanted))
        lacking = tuple(name for name, values in answers.items() if values["files"] is False)
        if not lacking:
            return ()
        content = program.files_of(wanted, self.inventory)
        if hashlib.sha256(content).hexdigest() != wanted.digest:
            raise BadFile([f"{wanted.files}: the files changed while this command ran"], hint="the same command again")
        packed = gzip.compress(content, 6, mtime=0)
        for offset in range(0, len(packed), program.PIECE):
            piece = packed[offset : offset + program.PIECE]
            last = offset + len(piece) == len(packed)
            data = base64.b64encode(piece).decode()
            await self._all(lacking, "job.files", {"files": wanted.digest, "offset": offset, "data": data, "last": last}, UNPACK_S)
        return lacking
