"""The programs that the lab's owner lets plans run, read from programs.yml. Text in, frozen values
out.

A plan is not trusted: it names a program and sets the arguments that the owner opened, each of a
kind; it never says what runs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from optics.plain import did_you_mean
from orchestrator.inventory.edges import Name
from orchestrator.inventory.patterns import explosive
from orchestrator.inventory.positions import Document, Path, Problems
from orchestrator.inventory.schema import ACCOUNT, LINE, OPTION, VARIABLE, Edge, check, show

Kind = Literal["int", "float", "choice", "str", "flag"]
Scalar = bool | int | float | str
CarriedBy = Literal["testbed", "gloo", "nccl", "none"]

RESERVED = (
    r"TESTBED_.*|PATH|PYTHONPATH|HOME|USER|LOGNAME|VIRTUAL_ENV|RANK|WORLD_SIZE|LOCAL_(RANK|WORLD_SIZE)|NODE_RANK|"
    r"GROUP_.*|ROLE_.*|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
)
"""Variables that the launcher sets for every rank."""
PLACEHOLDER = "{files}"
WORD = r"(?!\.\.$)[A-Za-z0-9._-]{0,64}"
"""A text argument without a pattern of its own: no separator and not `..`, so that it names no file
outside the job's directory."""
LONGEST_TEXT = 256
GROUPS = ("iter", "loss", "samples", "comm_ms")
"""What a pattern or a file may report of an iteration; `iter` it must."""
_ABSOLUTE = r"^/[A-Za-z0-9._+/-]{1,1023}$"
_LOCAL = r"^[A-Za-z0-9._+/-]{1,1023}$"

Text = Annotated[str, Field(pattern=LINE)]
Absolute = Annotated[str, Field(pattern=_ABSOLUTE)]


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f'"{text[:60]}" is not a regular expression: {error}') from None
    if message := explosive(text):
        raise ValueError(
            f'"{text[:60]}": {message}, which can take very long on a line that does not match'
        )
    return text


class ArgumentEdge(Edge):
    """An argument that plans may set."""

    kind: Kind
    min: float | None = None
    max: float | None = None
    of: Annotated[list[int | Text] | None, Field(min_length=1, max_length=256)] = None
    pattern: Annotated[str, Field(max_length=500)] | None = None
    default: bool | int | float | Text | None = None
    option: Annotated[str, Field(pattern=r"^(--)?[A-Za-z][A-Za-z0-9._-]{0,62}$")] | None = None

    @field_validator("pattern")
    @classmethod
    def _sound(cls, text: str | None) -> str | None:
        return None if text is None else _regex(text)


class IterationsEdge(Edge):
    """How an iteration shows: exactly one of pattern, file and reporter."""

    pattern: Annotated[str, Field(max_length=500)] | None = None
    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,126}$")] | None = None
    iter: Annotated[str, Field(min_length=1, max_length=64)] = "iter"
    loss: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    samples: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    comm_ms: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    reporter: bool = False

    @field_validator("pattern")
    @classmethod
    def _names_the_iteration(cls, text: str | None) -> str | None:
        if text is None:
            return None
        groups = re.compile(_regex(text)).groupindex
        if "iter" not in groups:
            raise ValueError(r'no group named iter, such as "iter (?P<iter>\d+)"')
        if unknown := [name for name in groups if name not in GROUPS]:
            raise ValueError(
                f"unknown group {unknown[0]}{did_you_mean(unknown[0], GROUPS) or '; known: ' + ', '.join(GROUPS)}"
            )
        return text


class CheckpointEdge(Edge):
    resume: Annotated[list[Text], Field(max_length=64)] = Field(default_factory=list)


class ProgramEdge(Edge):
    """A program of the lab's owner."""

    command: Annotated[
        list[Annotated[str, Field(pattern=LINE, min_length=1)]], Field(min_length=1, max_length=256)
    ]
    files: Annotated[str, Field(pattern=_LOCAL)] | None = None
    path: Absolute | None = None
    venv: Absolute | None = None
    user: Annotated[str, Field(pattern=ACCOUNT)] | None = None
    env: dict[Annotated[str, Field(pattern=VARIABLE)], Text] = Field(default_factory=dict)
    args: dict[Annotated[str, Field(pattern=OPTION)], ArgumentEdge] = Field(default_factory=dict)
    iterations: IterationsEdge
    checkpoint: CheckpointEdge | None = None
    weights: list[str] = Field(default_factory=list)
    backend: CarriedBy = "gloo"

    @field_validator("env")
    @classmethod
    def _not_the_launchers(cls, env: dict[str, str]) -> dict[str, str]:
        if wrong := [name for name in env if re.fullmatch(RESERVED, name)]:
            raise ValueError(f"{', '.join(wrong)}: set by the launcher for every rank")
        return env


class ProgramsEdge(Edge):
    """programs.yml."""

    programs: Annotated[dict[Name, ProgramEdge], Field(max_length=256)]


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument that a plan may set. option: its word on the command line, before `=` and the
    value.
    """

    name: str
    kind: Kind
    option: str
    default: Scalar | None = None
    least: float | None = None
    most: float | None = None
    choices: tuple[int | str, ...] = ()
    pattern: str = WORD

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        match self.kind:
            case "flag":
                return "true or false"
            case "choice":
                return (
                    ", ".join(map(str, self.choices[:-1]))
                    + (" or " if self.choices[1:] else "")
                    + str(self.choices[-1])
                )
            case "str":
                plain = self.pattern == WORD
                text = (
                    "letters, digits, '.', '_' and '-', at most 64, other than .."
                    if plain
                    else f"text that matches {self.pattern}"
                )
                return text if plain else f"{text}, at most {LONGEST_TEXT} characters"
        text = "a whole number" if self.kind == "int" else "a number"
        if self.least is not None:
            text += f" from {self.least:.15g}"
        return text + (
            f"{'' if self.least is not None else ' up'} to {self.most:.15g}"
            if self.most is not None
            else ""
        )

    def takes(self, value: object) -> bool:
        """Whether a plan may give this value."""
        if self.kind == "flag" or isinstance(value, bool):
            return self.kind == "flag" and isinstance(value, bool)
        if self.kind == "choice":
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        if self.kind == "str":
            return (
                isinstance(value, str)
                and len(value) <= LONGEST_TEXT
                and re.fullmatch(self.pattern, value) is not None
            )
        if not isinstance(value, int) and not (self.kind == "float" and isinstance(value, float)):
            return False
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def text(self, value: Scalar) -> list[str]:
        """The value on the command line: one word, so that no value can be taken for another
        option.
        """
        if self.kind == "flag":
            return [self.option] if value else []
        return [f"{self.option}={value}"]


@dataclass(frozen=True, slots=True)
class Iterations:
    """How an iteration shows: `pattern` matches a line of output; or `file`, JSON lines in the
    job's directory, has the `keys` of iter, loss, ...; or neither, and the program writes
    iterations.jsonl itself."""

    pattern: str = ""
    file: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """In words, where to look for what is missing."""
        if self.pattern:
            return f"no line of its output matched {self.pattern!r}"
        if self.file:
            return f"no line of {self.file} in its job directory has a number {self.keys['iter']!r}"
        return "it wrote no line to iterations.jsonl in its job directory"


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the lab's owner, as declared.

    files: a directory as written, relative to the inventory's; path: one on the hosts; at most one
    is given. resume: words added where a launch resumes, None: it keeps no checkpoints. weights:
    names of the args that decide the weights. place: of the declaration, file:line:column. digest:
    of the files, added by who reads them, as is `trouble`: why they cannot be copied.
    """

    name: str
    command: tuple[str, ...]
    iterations: Iterations
    args: Mapping[str, Argument] = field(default_factory=dict)
    files: str = ""
    path: str = ""
    venv: str = ""
    user: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    resume: tuple[str, ...] | None = None
    weights: tuple[str, ...] = ()
    backend: CarriedBy = "gloo"
    place: str = ""
    digest: str = ""
    trouble: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """Identifies the declaration and the files, in 12 hexadecimal digits."""
        declared = {k: v for k, v in asdict(self).items() if k not in ("place", "trouble")}
        return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()[:12]

    def complete(self, given: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """All arguments: those of a plan, and the defaults of the others that have one."""
        known = {
            name: argument.default
            for name, argument in self.args.items()
            if argument.default is not None
        }
        return {
            name: value
            for name in self.args
            if (value := given.get(name, known.get(name))) is not None
        }


def read_programs(document: Document, problems: Problems) -> dict[str, Program]:
    """The programs of programs.yml; what is wrong with them goes to `problems`."""
    edge = check(ProgramsEdge, document.value if document.value is not None else {}, problems)
    if edge is None:
        return {}
    return {
        name: _program(name, program, document, problems) for name, program in edge.programs.items()
    }


def _program(name: str, edge: ProgramEdge, document: Document, problems: Problems) -> Program:
    path: Path = ("programs", name)
    if edge.files is not None and edge.path is not None:
        problems.add(
            (*path, "path"),
            "files are copied to the hosts, or path names a directory there: not both",
            key=True,
        )
    tokens = [((*path, "command", at), word) for at, word in enumerate(edge.command)]
    resume = edge.checkpoint.resume if edge.checkpoint else []
    tokens += [((*path, "checkpoint", "resume", at), word) for at, word in enumerate(resume)]
    for where, word in tokens:
        if strange := [found for found in re.findall(r"\{[a-z_]+\}", word) if found != PLACEHOLDER]:
            problems.add(
                where,
                f"unknown {strange[0]}; {PLACEHOLDER} is replaced, ranks and addresses are in the environment",
            )
        elif PLACEHOLDER in word and edge.files is None and edge.path is None:
            problems.add(where, f"{PLACEHOLDER} needs files, or a path on the hosts")
    args = {
        key: _argument(key, argument, (*path, "args", key), problems)
        for key, argument in edge.args.items()
    }
    for at, key in enumerate(edge.weights):
        if key not in args:
            problems.add(
                (*path, "weights", at), f"{name} has no argument {key}{did_you_mean(key, args)}"
            )
    line, column = document.spot(path, key=True)
    return Program(
        name=name,
        command=tuple(edge.command),
        iterations=_iterations(edge.iterations, (*path, "iterations"), problems),
        args=args,
        files=edge.files or "",
        path=edge.path or "",
        venv=edge.venv or "",
        user=edge.user or "",
        env=edge.env,
        resume=tuple(edge.checkpoint.resume) if edge.checkpoint else None,
        weights=tuple(edge.weights),
        backend=edge.backend,
        place=f"{document.name}:{line}:{column}",
    )


_FIELDS: Mapping[str, tuple[str, ...]] = {
    "int": ("min", "max"),
    "float": ("min", "max"),
    "choice": ("of",),
    "str": ("pattern",),
}
"""The fields that each kind of argument takes beyond kind, default and option."""


def _argument(name: str, edge: ArgumentEdge, path: Path, problems: Problems) -> Argument:
    for key in ("min", "max", "of", "pattern"):
        if getattr(edge, key) is not None and key not in _FIELDS.get(edge.kind, ()):
            problems.add((*path, key), f"an argument of kind {edge.kind} takes no {key}", key=True)
    if edge.kind == "choice" and edge.of is None:
        problems.add(path, "a choice needs of: the values to choose from")
    if edge.min is not None and edge.max is not None and edge.max < edge.min:
        problems.add((*path, "max"), f"wanted at least min, {edge.min:g}, got {edge.max:g}")
    found = Argument(
        name=name,
        kind=edge.kind,
        option=edge.option or f"--{name}",
        default=edge.default,
        least=edge.min,
        most=edge.max,
        choices=tuple(edge.of or ()) or ("",),
        pattern=edge.pattern or WORD,
    )
    if edge.default is not None and not found.takes(edge.default):
        problems.add((*path, "default"), f"wanted {found.wanted}, got {show(edge.default)}")
    return found


def _iterations(edge: IterationsEdge, path: Path, problems: Problems) -> Iterations:
    given = [name for name in ("pattern", "file") if getattr(edge, name) is not None] + [
        "reporter"
    ] * edge.reporter
    if len(given) != 1:
        what = "none is given" if not given else f"{' and '.join(given)} are given"
        problems.add(path, f"wanted one of pattern, file and reporter; {what}")
    keys = {name: found for name in GROUPS if (found := getattr(edge, name)) is not None}
    if edge.file is None:
        for name in ("iter", *(set(GROUPS) - {"iter"})):
            if name in edge.model_fields_set:
                problems.add(
                    (*path, name),
                    f"{name} names a key of the lines of file; there is no file",
                    key=True,
                )
        keys = {}
    return Iterations(edge.pattern or "", edge.file or "", keys)


def users(programs: Mapping[str, Program]) -> tuple[str, ...]:
    """The users, beyond that of jobs, that programs run as."""
    return tuple(sorted({program.user for program in programs.values() if program.user}))


def nearest(name: str, programs: Mapping[str, Any]) -> str:
    """What to say to someone who named a program that is not declared."""
    if not programs:
        return "this lab declares none (programs.yml in its inventory)"
    return (
        did_you_mean(name, programs) or f"; declared: {', '.join(list(programs)[:8])}"
    ).removeprefix("; ")
