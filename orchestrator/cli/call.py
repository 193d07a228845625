"""One invocation of the command line: common options, output of results and errors, running the
engine.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from optics.errors import HandsNeeded, Missing, TestbedError, Unreachable
from optics.errors import Usage as Usage  # of every verb
from optics.plain import printable
from orchestrator.cli.groups import Verb
from orchestrator.cli.listing import COMMON_OPTIONS
from orchestrator.cli.tones import coloured
from orchestrator.extensions import verbs as verbs_of_extensions
from orchestrator.verbs.invoke import GRACE_S, bounded, invoked, start_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.results import Json
    from orchestrator.session import Command
    from orchestrator.settings import Settings
    from orchestrator.store.store import Store
    from orchestrator.telemetry.phases import PhaseTime
    from orchestrator.telemetry.progress import Progress
    from orchestrator.verbs import change as verbs

P = ParamSpec("P")
T = TypeVar("T")

API = "testbed/v1"
_LAB_VERBS = "|".join(
    (
        "confirm|design|devices|doctor|down|experiment (?:compare|reproduce)|host|job|lab|lock|plan|restore|resume|rollback",
        "service|status|tagout|ui|up|verify|watch",
        *(verb for found in verbs_of_extensions().values() for verb in found),
    )
)
_COMMAND = re.compile(rf"\btestbed (?=(?:{_LAB_VERBS})\b)((?:(?!\btestbed )[^;`\n])*)")
"""A command in a text, up to where it may end."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a verb: `data` for `--json`, `text` for people; `code` and `exit_code` unless
    it is a plain success.
    """

    data: Mapping[str, Json]
    text: str = ""
    code: str = "OK"
    exit_code: int = 0
    message: str = ""
    hint: str = ""
    ok: bool = True
    verbatim: bool = False
    """Whether lines of `text` that are longer than the terminal is wide must not be broken: a file,
    a log.
    """


def _one_stream() -> bool:
    """Whether stdout and stderr are the same file or pipe."""
    try:
        return os.path.samestat(os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno()))
    except (OSError, ValueError):  # closed, or not a file
        return False


def silent_text(names: Sequence[str]) -> str:
    """The list of those that do not answer: `1 does not answer: ocs1`."""
    return f"{len(names)} {'does' if len(names) == 1 else 'do'} not answer: {', '.join(names[:8])}"


def unanswered(
    data: Mapping[str, Json], text: str, silent: Mapping[str, str], hint: str
) -> Result | None:
    """The result of a verb that queried devices and hosts, some of which did not answer; `silent`:
    their names and error codes.
    """
    missing = [name for name, code in silent.items() if code == Missing.code]
    if not silent:
        return None
    message = f"no password for {', '.join(missing)}" if missing else ""
    if len(missing) == len(silent):
        return Result(
            data, text, Missing.code, Missing.exit_code, message, "testbed doctor", ok=False
        )
    unreachable = silent_text([name for name in silent if name not in missing])
    message = f"{unreachable}; {message}" if message else unreachable
    return Result(data, text, Unreachable.code, Unreachable.exit_code, message, hint, ok=False)


@dataclass
class Call:
    """The options common to all verbs, wherever they were on the line."""

    verb: str = ""
    inventory: str | None = None
    json: bool = False
    no_color: bool = False
    yes: bool = False
    timeout: str | None = None
    owner: str | None = None
    wait: str | None = None
    pairs: str | None = None
    started: PhaseTime | None = None
    """How long the emulated lab took to start, if this call started it."""
    reported: Container[str] = frozenset()
    """Phases and notes that were printed while the engine worked to where the report will be
    printed too (`2>&1`).
    """

    @cached_property
    def settings(self) -> Settings:
        from orchestrator.files.reading import ALLOWED_S
        from orchestrator.settings import load

        flags = {
            "inventory": self.inventory,
            "timeout": self.timeout,
            "owner": self.owner,
            "wait": self.wait,
        }
        found = load({**flags, "verify.pairs": self.pairs})
        ALLOWED_S.set(found.timeout_s)
        return found

    @property
    def recorded(self) -> str:
        """The verb of the runs it makes: `plan --prewire` makes those of `prewire`."""
        return self.verb.rpartition("--")[2]

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Keep a `--timeout` that was given in work that awaits nothing. Raises: TimedOut.
        KeyboardInterrupt - Ctrl-C, SIGTERM.
        """
        from orchestrator.files.reading import ALLOWED_S, attentive

        token = ALLOWED_S.set(
            self.settings.timeout_s
            if self.settings.origins.get("timeout", "default") != "default"
            else None
        )
        try:
            with attentive(self.verb, "finished"):
                yield
        finally:
            ALLOWED_S.reset(token)

    @property
    def colour(self) -> bool:
        """Whether stdout gets colours: it is a terminal, and NO_COLOR is not set
        (https://no-color.org).
        """
        return (
            sys.stdout.isatty()
            and not self.no_color
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )

    @property
    def unicode(self) -> bool:
        return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Open the run store for the command."""
        from orchestrator.store.store import Store

        with Store(self.settings.store_path, shared=self.settings.store is not None) as store:
            yield store

    def progress(self, expected: Mapping[str, float] | None = None) -> Progress:
        from orchestrator.telemetry.progress import Lines, progress_for

        colour = not self.no_color and not os.environ.get("NO_COLOR")
        progress = progress_for(
            sys.stderr, json=self.json, colour=colour, expected=expected, reworded=self.here
        )
        if isinstance(progress, Lines) and _one_stream():
            self.reported = progress.reported
        return progress

    def here(self, text: str) -> str:
        """The text, its commands extended by the lab and owner that this command line chose by
        options.

        What an environment variable or a settings file chose, the next command finds there as well.
        """

        def chosen(found: re.Match[str]) -> str:
            rest = found[1]
            options = (
                (self.inventory, "--inventory", r"(?<!\S)(?:--inventory|-i)\b"),
                (self.owner, "--as", r"--as\b"),
            )
            added = [
                f"{name} {shlex.quote(value)} "
                for value, name, existing in options
                if value and not re.search(existing, rest)
            ]
            return f"testbed {''.join(added)}{rest}"

        return _COMMAND.sub(chosen, text)

    def note(self, text: str) -> None:
        """Print a message for the operator on stderr, unless the output is for a program."""
        if not self.json:
            print(coloured(text), file=sys.stderr, flush=True)

    def confirm(self, question: str) -> None:
        """Ask before an action that cannot be undone. Raises: Usage - no terminal to ask on, and no
        `--yes`.
        """
        if self.yes:
            return
        self.must_be_able_to_ask()
        print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise KeyboardInterrupt

    def must_be_able_to_ask(self) -> None:
        """Raises: Usage - `confirm` would have no terminal to ask on, and there is no `--yes`."""
        if not self.yes and (self.json or not (sys.stdin.isatty() and sys.stderr.isatty())):
            raise Usage(
                f"{self.verb} asks for confirmation, but there is no terminal", hint="add --yes"
            )

    def work(
        self,
        verb: Callable[Concatenate[Command, P], Coroutine[Any, Any, T]],
        *argv: P.args,
        **options: P.kwargs,
    ) -> T:
        """Run a function of the engine on the chosen inventory with store, progress and
        deadline.
        """
        return self._work(lambda command: verb(command, *argv, **options))

    def work_on_lab(
        self,
        verb: Callable[Concatenate[Command, P], Coroutine[Any, Any, T]],
        *argv: P.args,
        **options: P.kwargs,
    ) -> T:
        """As `work`; an emulated lab that does not run is started first."""
        return self._work(lambda command: verb(command, *argv, **options), start=True)

    def _work(self, work: Callable[[Command], Coroutine[Any, Any, T]], *, start: bool = False) -> T:
        settings = self.settings
        with (
            self.store() as store,
            self.progress(store.expected_seconds(settings.inventory, self.recorded)) as progress,
        ):
            if start:
                self.started = start_lab(settings, progress) or self.started
            with invoked(progress, store, settings) as command:
                return self._run(work(command))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`. The first Ctrl-C or SIGTERM makes it finish or revert the current step, a
        second one stops immediately.
        """
        import asyncio
        import signal

        limit = self.settings.timeout_s + GRACE_S

        async def stoppable() -> T:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
            return await bounded(work, self.verb, limit)

        try:
            return asyncio.run(stoppable())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


class _Engine:
    """`orchestrator.verbs.change`, imported when the first verb of it is used: its libraries take
    long to load.
    """

    def __getattr__(self, name: str) -> Any:
        """Raises: Missing - a library is not installed."""
        import gc
        from importlib import import_module

        try:
            found = getattr(import_module("orchestrator.verbs.change"), name)
            # what was imported stays: no collection need look through it, least of all the one
            # before the dark window
            gc.freeze()
            return found
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in ("orchestrator", "drivers", "optics"):
                raise  # a bug of this program, not a package that could be installed
            raise Missing(
                f"the Python package {error.name} is not installed",
                hint=f"{sys.executable} -m pip install {error.name}",
            ) from error


if TYPE_CHECKING:
    engine = verbs
else:
    engine = _Engine()


def _inventories(incomplete: str) -> list[str]:
    return [
        str(p.parent)
        for p in Path("inventory").glob("*/devices.yml")
        if str(p.parent).startswith(incomplete)
    ]


Inventory = Annotated[
    str | None,
    typer.Option(
        "--inventory",
        "-i",
        metavar="DIR",
        help=COMMON_OPTIONS["inventory"][1],
        show_default=False,
        autocompletion=_inventories,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help=COMMON_OPTIONS["json"][1])]
NoColor = Annotated[bool, typer.Option("--no-color", help=COMMON_OPTIONS["no_color"][1])]
Yes = Annotated[bool, typer.Option("--yes", "-y", help=COMMON_OPTIONS["yes"][1])]
Timeout = Annotated[
    str | None,
    typer.Option(
        "--timeout", metavar="TIME", help=COMMON_OPTIONS["timeout"][1], show_default=False
    ),
]
Owner = Annotated[
    str | None,
    typer.Option("--as", metavar="OWNER", help=COMMON_OPTIONS["owner"][1], show_default=False),
]

Version = Annotated[
    bool, typer.Option("--version", help="Print the versions of testbed and its dependencies.")
]

COMMON: Mapping[str, tuple[Any, Any]] = {
    "inventory": (Inventory, None),
    "json": (AsJson, False),
    "no_color": (NoColor, False),
    "yes": (Yes, False),
    "timeout": (Timeout, None),
    "owner": (Owner, None),
}


HELP_COLUMNS = 76
"""Of an example in a help text, which is indented by four more and fits a terminal of 80
columns.
"""


def _example(line: str) -> str:
    """A command and its purpose, on two lines if they do not fit on one."""
    command, _, purpose = re.sub(r"\s{3,}", "\0", line, count=1).partition("\0")
    return (
        f"  {line}" if len(line) <= HELP_COLUMNS or not purpose else f"  {command}\n      {purpose}"
    )


MOST = 2**63 - 1
"""Largest whole number on a command line: what SQLite, a journal and the programs on hosts have
room for.
"""


def _bounded_numbers(ctx: typer.Context, given: Mapping[str, Any]) -> None:
    """Raises: Usage - a whole number is too large to be kept anywhere."""
    for parameter in ctx.command.params:
        value = given.get(parameter.name or "")
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and not -MOST <= number <= MOST:
                name = parameter.opts[0] if parameter.opts[0].startswith("-") else parameter.metavar
                raise Usage(
                    f"{name}: {number} is too large, the most is {MOST}",
                    hint=f"{ctx.command_path} --help",
                )


def verb(
    app: typer.Typer, name: str, short: str, *, examples: str, more: str = ""
) -> Callable[[Callable[..., Result]], Any]:
    """Register a verb: a function of a `Call` and its own options, to which the common options are
    added.

    The help text shows the examples first, one command a line.
    """
    lines = "\n".join(_example(line) for line in examples.strip().splitlines())
    help_text = f"{short}\n\n\b\nExamples:\n{lines}" + (f"\n\n{more.strip()}" if more else "")

    def register(function: Callable[..., Result]) -> Callable[..., Result]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def run(ctx: typer.Context, **given: Any) -> Result:
            call = Call(ctx.command_path.partition(" ")[2])
            root = ctx.find_root().obj = ctx.find_root().obj or {}
            for option in COMMON:
                setattr(
                    call, option, given.pop(option) or root.get(option) or getattr(call, option)
                )
            _bounded_numbers(ctx, given)
            try:
                result = function(call, **given)
            except TestbedError as error:
                error.hint = call.here(error.hint)
                if isinstance(error, HandsNeeded):
                    error.args, error.left = (
                        (call.here(str(error)),),
                        tuple(map(call.here, error.left)),
                    )
                raise
            return replace(result, hint=call.here(result.hint))

        parameters = [
            inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        ]
        parameters += [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        parameters += [
            inspect.Parameter(
                option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
            for option, (kind, default) in COMMON.items()
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__name__ = function.__name__
        app.command(name, cls=Verb, help=help_text, short_help=short)(run)
        return function

    return register
