"""A program of the lab's owner as a job: its files, its command line and the environment of its
ranks.

Only the files are read here; the rest is values in, values out.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from optics import BadFile, Infeasible
from optics.plan import Job
from optics.ranks import host_of_rank
from orchestrator.files.reading import read_whole
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.programs import PLACEHOLDER, Program, nearest

MOST_FILES = 2000
MOST_BYTES = 32 << 20
"""Of all files of a program together. Data sets belong on the hosts: `path`."""
SKIPPED = ("__pycache__",)
"""Directories that are not copied; nor is anything whose name begins with a dot: version control,
editors' locks.
"""
ON_HOSTS = "/var/lib/testbed/programs"
OVER_RINGS = {"TESTBED_REPLACES": "gloo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Variables of a program whose collectives the project's back-end carries, whatever the script asks
for. torch would log each look of a paused rank into its store, five lines a second."""
PIECE = 384 << 10
"""Bytes of one request: in base64 about half of the longest line an agent takes."""


def program_archive(folder: Path, uids: Collection[int]) -> bytes:
    """The files of a program as a tar archive, the same bytes for the same content; links and other
    users' files are refused.

    uids: whose files are trusted. Raises: BadFile - with every reason why they cannot be copied.
    """
    problems: list[str] = []
    buffer = io.BytesIO()
    left, count = MOST_BYTES, 0
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in _walk(folder, uids, problems):
            if len(problems) >= 20:
                break
            count += 1
            if count > MOST_FILES:
                problems.append(
                    f"{folder}: more than {MOST_FILES} files; a data set belongs on the hosts, with `path`"
                )
                break
            try:
                content, executable = _content(path, left, uids)
            except OSError as error:
                problems.append(f"{path}: {error.strerror or error}")
                continue
            left -= len(content)
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size, entry.mode = len(content), 0o755 if executable else 0o644
            tar.addfile(entry, io.BytesIO(content))
    if not problems and not count:
        problems.append(f"{folder}: no files in it")
    if problems:
        raise BadFile(problems)
    return buffer.getvalue()


def _walk(folder: Path, uids: Collection[int], problems: list[str]) -> Iterator[Path]:
    """The files below a directory in the order of their names; what cannot be copied goes to
    `problems`.
    """
    try:
        if text := _untrusted(folder.stat(), uids):
            problems.append(f"{folder}: {text}")
            return
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        problems.append(
            f"{folder}: {'no such directory' if isinstance(error, FileNotFoundError) else error.strerror}"
        )
        return
    for entry in entries:
        path = Path(entry.path)
        if entry.name.startswith(".") or entry.name in SKIPPED:
            continue
        if not entry.name.isprintable():
            problems.append(f"{folder}: a name with control characters: {entry.name!r}")
        elif entry.is_symlink():
            problems.append(
                f"{path}: a symbolic link; files of a program are copied, and links are not followed"
            )
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(path, uids, problems)
        else:
            yield path


def _untrusted(found: os.stat_result, uids: Collection[int]) -> str:
    """Why others may decide what a file or directory has in it, in words; empty where they may
    not.
    """
    if found.st_uid not in uids:
        return "belongs to another user, and its content would decide what runs on the hosts"
    replaceable = found.st_mode & stat.S_IWOTH and not (
        stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    )
    return (
        "every user may write it, and so decide what runs on the hosts: chmod o-w"
        if replaceable
        else ""
    )


def _content(path: Path, most: int, uids: Collection[int]) -> tuple[bytes, bool]:
    """A file's content, and whether it can be executed. Raises: OSError - with what is wrong with
    it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW)
    with os.fdopen(fd):
        found = os.fstat(fd)
        if text := _untrusted(found, uids):
            raise OSError(text)
        if stat.S_ISREG(found.st_mode) and found.st_size > most:
            raise OSError(
                f"with it the files are larger than {MOST_BYTES >> 20} MiB; a data set belongs on the hosts, with `path`"
            )
        return read_whole(fd, most), bool(found.st_mode & stat.S_IXUSR)


def with_files(lab: Lab, inventory: Path) -> Lab:
    """The lab whose programs know the digests of their files. Files that cannot be copied are
    reported by the plan that needs them: a lab can be taken down whatever is the matter with a
    program."""
    return replace(lab, programs=WithFiles(lab.programs, inventory)) if lab.programs else lab


class WithFiles(Mapping[str, Program]):
    """Programs by name. The files of one are read when it is first asked for: 30 MB take 0.1 s, and
    few commands run a program.
    """

    def __init__(self, declared: Mapping[str, Program], inventory: Path) -> None:
        self._declared, self._inventory = declared, inventory
        self._found: dict[str, Program] = {}

    def __getitem__(self, name: str) -> Program:
        if name not in self._found:
            self._found[name] = _with_digest(self._declared[name], self._inventory)
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in self._declared

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)


def _with_digest(program: Program, inventory: Path) -> Program:
    if not program.files:
        return program
    try:
        return replace(program, digest=hashlib.sha256(files_of(program, inventory)).hexdigest())
    except BadFile as error:
        return replace(program, trouble=tuple(error.problems))
    except OSError as error:  # programs.yml is gone since it was read
        return replace(program, trouble=(f"{error.filename}: {error.strerror}",))


def files_of(program: Program, inventory: Path) -> bytes:
    """The archive of a program's files. Raises: BadFile - they cannot be copied."""
    owner = (inventory / "programs.yml").stat().st_uid  # believed since the inventory was opened
    return program_archive(inventory / program.files, frozenset((0, os.geteuid(), owner)))


def of(job: Job, lab: Lab) -> Program:
    """The program that a job names. Raises: Infeasible - it is not declared, any more."""
    found = lab.programs.get(job.program)
    if found is None:
        raise Infeasible(
            f"job {job.name}: no program {job.program}; {nearest(job.program, lab.programs)}",
            hint="testbed status",
        )
    return found


def directory(program: Program) -> str:
    """Where the program's files are on the hosts; empty: nowhere in particular."""
    return program.path or (f"{ON_HOSTS}/{program.digest}" if program.files else "")


def program_command(program: Program, job: Job, *, resume: bool) -> list[str]:
    """The program's command line: the owner's words, then one word for each argument."""
    given = [
        word
        for name, value in job.args.items()
        if name in program.args
        for word in program.args[name].text(value)
    ]
    again = [word for word in (program.resume or ()) if resume and word not in given]
    where = directory(program)
    return [
        *(word.replace(PLACEHOLDER, where) for word in program.command),
        *given,
        *(w.replace(PLACEHOLDER, where) for w in again),
    ]


def rank_argv(program: Program, job: Job, *, resume: bool) -> list[str]:
    """The command line of a rank: the supervisor, what it has to know, and the program's own."""
    tokens = ["python3", "-m", "workloads.programs.supervise", "--program", program.name]
    shows = program.iterations
    for option, value in (
        ("--directory", directory(program)),
        ("--venv", program.venv),
        ("--pattern", shows.pattern),
        ("--file", shows.file),
        *(("--key", f"{name}={key}") for name, key in shows.keys.items()),
    ):
        if value:
            tokens.append(f"{option}={value}")
    return [*tokens, "--", *program_command(program, job, resume=resume)]


def rank_environment(
    program: Program, job: Job, run: str, env: Mapping[str, str]
) -> dict[str, str]:
    """The variables of a rank: `env`, what torchrun sets beyond it, and the owner's.

    Names and meanings: torch.distributed.run, "Environment Variables".
    """
    rank, world = env["RANK"], env["WORLD_SIZE"]
    here = env.get("LOCAL_WORLD_SIZE", "1")
    group = str(job.hosts.index(host_of_rank(job.ranks[int(rank)])))
    return {
        **env,
        "LOCAL_WORLD_SIZE": here,
        "GROUP_RANK": group,
        "NODE_RANK": group,
        "GROUP_WORLD_SIZE": str(len(job.hosts)),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": f"{job.name}.{run}",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TESTBED_BACKEND": program.backend,
        "TESTBED_PROGRAM": program.name,
        **(OVER_RINGS if program.backend == "testbed" else {}),
        **({"TESTBED_FILES": directory(program)} if directory(program) else {}),
        **program.env,
    }


def complete_request(
    request: dict[str, Any], job: Job, lab: Lab, run: str, *, resume: bool
) -> dict[str, Any]:
    """The request that starts a rank of the job: as of our own programs, but for what runs, as
    whom, and its variables.
    """
    program = of(job, lab)
    found = {
        **request,
        "argv": rank_argv(program, job, resume=resume),
        "env": rank_environment(program, job, run, request["env"]) | dict(job.env),
    }
    return found | ({"user": program.user} if program.user else {})


def needs(program: Program) -> dict[str, Any]:
    """The fields of `job.ready`: what must be on a host before the program can be started there."""
    return {
        "program": program.name,
        "paths": [path for path in (program.path, program.venv and f"{program.venv}/bin") if path],
        **({"user": program.user} if program.user else {}),
        **({"files": program.digest} if program.files else {}),
    }
