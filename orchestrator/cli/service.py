"""`testbed service`: the background processes of a lab. The verbs of each are made from its kind,
with its options and help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from orchestrator.background.options import TIME, Option, shown
from orchestrator.background.work import ServiceNote
from orchestrator.cli.call import Call, Result, verb
from orchestrator.cli.listing import VERBS
from orchestrator.cli.shared import Jsonl, one_of, own_lab, own_tenancy, seconds

if TYPE_CHECKING:
    from orchestrator.background.kind import Kind
    from orchestrator.background.options import ServiceOptions
    from orchestrator.background.state import ServiceState
    from orchestrator.results import Json

Log = Annotated[
    Path | None, typer.Option("--log", metavar="FILE", help="File to append its events to.")
]
Kept = Annotated[bool, typer.Option("--kept", hidden=True)]


class _Verbs(TyperGroup):
    """The four, in this order."""

    def list_commands(self, ctx: Any) -> list[str]:
        return ["start", "run", "stop", "status"]


class _Kinds(TyperGroup):
    """One command for each kind of service; the module of a kind is imported when its command is
    asked for.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        from orchestrator.background.registry import names

        return names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from orchestrator.background.registry import kind, names

        if cmd_name in self.commands or cmd_name not in names():
            return self.commands.get(cmd_name)
        one, found = typer.Typer(add_completion=False, rich_markup_mode=None), kind(cmd_name)
        make = _start if self.name == "start" else _run
        function = make(found)
        function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                *_parameters(
                    inspect.signature(function, eval_str=True),
                    found.options,
                    once=self.name == "run",
                )
            ]
        )
        verb(
            one,
            cmd_name,
            found.short,
            examples=found.examples or f"testbed service {self.name} {cmd_name}",
            more=found.more,
        )(function)
        self.commands[cmd_name] = typer.main.get_command(one)
        return self.commands[cmd_name]


def _names(incomplete: str) -> list[str]:
    from orchestrator.background.registry import names

    return [name for name in names() if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(metavar="NAME", help="The service.", autocompletion=_names)]
app = typer.Typer(
    name="service",
    help=VERBS["service"][1],
    cls=_Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,
)
for word, purpose in (
    ("start", "Start a service in the background."),
    ("run", "Run a service here, and print its events."),
):
    app.add_typer(
        typer.Typer(
            name=word, help=purpose, cls=_Kinds, no_args_is_help=True, rich_markup_mode=None
        )
    )


def _parameters(
    own: inspect.Signature, options: type[ServiceOptions], *, once: bool
) -> list[inspect.Parameter]:
    """The parameters of a function, its last one (all others) replaced by one for each option of a
    kind.
    """
    found = list(own.parameters.values())[:-1]
    for name, default, option in options.declared():
        if once or not option.once:
            kind = Annotated[_type(default, option), _typed(option)]  # type: ignore[valid-type]
            value = shown(option, default) if option.metavar == TIME else default
            found.append(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind
                )
            )
    return found


def _type(default: object, option: Option) -> type:
    return str if option.metavar == TIME else type(default)


def _typed(option: Option) -> Any:
    more = {} if option.least is None else {"min": option.least}
    more |= {} if option.most is None else {"max": option.most}
    return typer.Option(option.name, help=option.help, metavar=option.metavar or None, **more)  # type: ignore[arg-type]


def _options(kind: Kind[Any], given: Mapping[str, Any], log: Path | None, **more: Any) -> Any:
    """The options as they were typed. Raises: Usage - a value is none of those known, or no
    duration.
    """
    values = dict(given)
    for name, default, option in kind.options.declared():
        if name in given and option.known:
            one_of(given[name], option.known, option.name)
        if name in given and option.metavar == TIME:
            values[name] = seconds(option.name, given[name], shown(option, default))
    return kind.options(**values, log=str(log or ""), **more)


def _have(call: Call, function: str, *argv: Any, **more: Any) -> Any:
    """What a function of a kind returns: a coroutine function works on the lab, a plain one needs
    no more than the settings.
    """
    from orchestrator.background.registry import by_path

    found = by_path(function)
    return (
        call.work(found, *argv, **more)
        if inspect.iscoroutinefunction(found)
        else found(call.settings, *argv, **more)
    )


def key_of_one(call: Call, kind: Kind[Any]) -> str:
    """The key of the caller's one of this kind. Raises: Usage - it is of a server, and none is
    configured.
    """
    if kind.of == "server":
        return kind.key(call.settings, "", "")
    return own_lab(call) if kind.of == "lab" else own_tenancy(call)


def begun(
    call: Call, kind: Kind[Any], options: ServiceOptions | None = None
) -> ServiceState | ServiceNote:
    """Start one in the background, or find the one that runs. Raises: as `Kind.start`, and as
    `begin` of the kind.
    """
    options, key = options or kind.options(), key_of_one(call, kind)
    found: ServiceState | ServiceNote | None = (
        _have(call, kind.begin, options) if kind.begin else None
    )
    return found or kind.start(
        call.settings, key, Path(options.log) if options.log else None, options
    )


def ended(call: Call, kind: Kind[Any]) -> tuple[ServiceState | None, ServiceNote]:
    """Stop the one that runs, None if none did; and what else there is to report."""
    key = key_of_one(call, kind)
    if (place := kind.stop(call.settings, key)) is not None:
        place = kind.read(kind.path(call.settings, key)) or place  # as it left it
    return place, _have(call, kind.after, place) if kind.after else ServiceNote()


def _start(kind: Kind[Any]) -> Callable[..., Result]:
    def start(call: Call, log: Log = None, **given: Any) -> Result:
        from orchestrator.results import to_json

        options = _options(kind, given, log)
        before = kind.running(call.settings, key_of_one(call, kind))
        found = begun(call, kind, options)
        data: dict[str, Json] = {
            "service": kind.name,
            "started": False,
            "state": None,
            "details": {},
        }
        if isinstance(found, ServiceNote):
            return Result(data | {"details": dict(found.data)}, found.message, hint=found.hint)
        data["state"] = to_json(found)
        if before is not None and (before.pid, before.since) == (found.pid, found.since):
            message = f"The {kind.noun} runs already: {found}"
            message += "; it keeps the options that it was started with" if options.text() else ""
            return Result(data, message, hint=f"testbed service stop {kind.name}")
        text = f"The {kind.noun} was started: {found}; events in {found.log}"
        return Result(data | {"started": True}, text, hint=f"testbed service stop {kind.name}")

    return start


def _run(kind: Kind[Any]) -> Callable[..., Result]:
    def run(
        call: Call, jsonl: Jsonl = False, log: Log = None, kept: Kept = False, **given: Any
    ) -> Result:
        from orchestrator.background.supervise import supervised
        from orchestrator.cli.events import EventPrinter

        options = _options(kind, given, log, kept=kept)
        if kept:
            supervised()
        printer = EventPrinter(call.verb, jsonl, call.json, log)
        try:
            report = _have(call, kind.work, notify=printer, options=options)
        finally:
            printer.close()
        return Result(report.to_json(), "" if jsonl else report.text(), verbatim=report.verbatim)

    return run


@verb(
    app,
    "stop",
    "Stop a service; it completes the current step.",
    examples="testbed service stop guard",
)
def stop(call: Call, name: Name) -> Result:
    from orchestrator.background.registry import kind, names
    from orchestrator.results import to_json

    found = kind(one_of(name, names(), f"testbed {call.verb}"))
    existing, note = ended(call, found)
    data: dict[str, Json] = {
        "service": name,
        "stopped": existing is not None or note.done,
        "state": to_json(existing),
        "details": dict(note.data),
    }
    text = f"No {found.noun} was running"
    if existing is not None:
        text = f"The {found.noun}{existing.of} was stopped (pid {existing.pid}){existing.leaves}"
    hint = note.hint or (
        f"testbed service start {name}" if existing is not None and existing.leaves else ""
    )
    return Result(data, text + (f"; {note.message}" if note.message else ""), hint=hint)


@verb(
    app,
    "status",
    "Show the services of this lab and owner: state, process, log, trouble.",
    examples="testbed service status\ntestbed service status guard --json | jq .data.services[0].state",
)
def status(
    call: Call,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Only this one.", autocompletion=_names)
    ] = None,
) -> Result:
    from orchestrator.background.registry import names, statuses
    from orchestrator.cli.text import columns, when
    from orchestrator.results import path_text, to_json

    if name is not None:
        one_of(name, names(), f"testbed {call.verb}")
    found = [
        one
        for one in statuses(call.settings, own_tenancy(call), own_lab(call))
        if name in (None, one.service)
    ]
    rows: list[tuple[str, ...]] = [("service", "state", "pid", "since", "trouble", "log")]
    for one in found:
        at = (str(one.pid or ""), when(one.since) if one.since else "")
        rows.append(
            (one.service, one.state, *at, one.trouble, path_text(one.log) if one.log else "")
        )
    argv = [one.message for one in found if name is not None and one.message]
    return Result({"services": to_json(found)}, "\n".join([*columns(rows), *argv]))
