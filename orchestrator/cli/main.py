"""The command `testbed`: build the app, run one verb, print its result or error, exit with its exit
code.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, TextIO

import typer
from typer.main import get_command

from optics.errors import BadFile, HandsNeeded, TestbedError
from optics.plain import did_you_mean, indented, json_safe, printable
from orchestrator.cli.call import (
    API,
    AsJson,
    Inventory,
    NoColor,
    Owner,
    Result,
    Timeout,
    Version,
    Yes,
)
from orchestrator.cli.groups import ALL, Root, first_word
from orchestrator.cli.listing import VERBS
from orchestrator.cli.pages import with_pages
from orchestrator.cli.tones import coloured

EXIT_CODES = {
    0: "done, or nothing to do",
    1: "unexpected: a fault of this program",
    2: "wrong usage, or this machine lacks something",
    3: "bad plan or inventory",
    4: "locked by another owner",
    5: "device or host unreachable",
    6: "failed and rolled back: everything is as before",
    7: "failed half way, or not verified: manual repair is needed",
    8: "differences exist (only with --exit-code), a claim does not hold, trials failed, or a fault was diagnosed or not excluded",
    9: "refused by an interlock (foreign circuit, tag-out, power limit)",
    130: "interrupted",
}

COMPLETING = "_TESTBED_COMPLETE"
"""Set by a shell that asks for completions."""
LOST_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing to stdout or stderr when the disk or device behind it is full or fails."""


def named(argv: Sequence[str]) -> str:
    """The verb of a command line, empty if there is none."""
    place = first_word(argv)
    return "" if place is None else argv[place]


def app(only: str | None = None) -> typer.Typer:
    """Build the app, with the verb `only` alone if there is one of this name: building all takes
    0.1 s, and a run uses one.

    only: empty for none, if only their list is asked for. The modules of the verbs are cheap to
    import; what they need is imported when they run.
    """
    from importlib import import_module

    verbs = [] if only == "" else [verb for verb in VERBS if verb == only] or list(VERBS)
    modules = dict.fromkeys(VERBS[verb][0] for verb in verbs)
    # Rich help costs about 100 ms per start; plain help is the same text.
    root = typer.Typer(
        name="testbed", rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=False
    )

    @root.callback(cls=Root, invoke_without_command=True)
    def options(
        ctx: typer.Context,
        inventory: Inventory = None,
        json: AsJson = False,
        no_color: NoColor = False,
        yes: Yes = False,
        timeout: Timeout = None,
        owner: Owner = None,
        version: Version = False,
    ) -> Result | None:
        given = {
            "inventory": inventory,
            "json": json,
            "no_color": no_color,
            "yes": yes,
            "timeout": timeout,
            "owner": owner,
        }
        ctx.obj = {**(ctx.obj or {}), **given}
        if version:
            from orchestrator.cli.installed import versions

            return versions()
        if ctx.invoked_subcommand is None and not ctx.resilient_parsing:
            print(ctx.get_help())
        return None

    for module in modules:
        root.add_typer(import_module(module if "." in module else f"orchestrator.cli.{module}").app)
    return root


def envelope(result: Result) -> str:
    """The one JSON object of `--json`."""
    body = {
        "api": API,
        "ok": result.ok,
        "code": result.code,
        "message": result.message,
        "hint": result.hint,
        "data": dict(result.data),
    }
    return json_safe(json.dumps(body, ensure_ascii=False))


def failure(error: BaseException) -> Result:
    """Turn any error into a result."""
    if isinstance(error, BadFile):
        return Result(
            {"problems": list(error.problems)},
            "",
            error.code,
            error.exit_code,
            str(error),
            error.hint,
            ok=False,
        )
    if isinstance(error, HandsNeeded):
        return Result(
            {"left": list(error.left)},
            "",
            error.code,
            error.exit_code,
            str(error),
            error.hint,
            ok=False,
        )
    if isinstance(error, TestbedError):
        return Result({}, "", error.code, error.exit_code, str(error), error.hint, ok=False)
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return Result(
            {},
            "",
            "E-INTERRUPTED",
            130,
            "interrupted",
            "testbed status shows the state of the lab, testbed run list what was done",
            ok=False,
        )
    # typer's own usage errors; their class has moved between its versions
    if hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        hint = f"{context.command_path} --help" if context is not None else "testbed --help"
        return Result({}, "", "E-USAGE", 2, _reworded(error.format_message()), hint, ok=False)
    return Result(
        {}, "", "E-UNEXPECTED", 1, f"{type(error).__name__}: {error}", _traceback(error), ok=False
    )


def _reworded(message: str) -> str:
    """A usage error of typer; of a value that is none of those accepted, in the words of
    `shared.one_of`.
    """
    import re

    found = re.fullmatch(
        r"(?s)Invalid value for '(.*)': Value error, '(.*)' is not one of (.*)\.", message
    )
    if found is None:
        return message
    name, value, known = (
        found[1].partition("' / '")[0],
        found[2],
        re.findall(r"'([^']+)'", found[3]),
    )
    return f"{f'{name} ' if name.startswith('-') else ''}{value}: not one of {', '.join(known)}{did_you_mean(value, known)}"


def _traceback(error: BaseException) -> str:
    """Save the traceback of an unexpected error to a file; return what to do with it."""
    import tempfile
    import traceback

    lines = "".join(traceback.format_exception(error))
    if os.environ.get("TESTBED_DEBUG"):
        print(lines, file=sys.stderr)
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="testbed-crash-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(lines)
    except OSError:
        return "run again with TESTBED_DEBUG=1 for the traceback"
    return f"this is a bug in testbed; please report it and attach {file.name}"


def run(argv: Sequence[str]) -> int:
    """Run one command line, print its result, return its exit code."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    as_json = "--json" in own
    whole_help = "--help" in own and "--all" in own
    try:
        outcome: Any = get_command(app(None if COMPLETING in os.environ else named(argv))).main(
            [word for word in argv if word != "--all"] if whole_help else list(argv),
            prog_name="testbed",
            standalone_mode=False,
            obj={ALL: whole_help},
        )
        # typer's Exit: --help, completion, or its own handling of Ctrl-C
        if isinstance(outcome, int):
            if outcome != 130:
                return int(outcome)
            result = failure(KeyboardInterrupt())
        elif isinstance(outcome, Result):
            result = outcome
        else:
            return 0
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        if (
            isinstance(error, OSError)
            and not isinstance(error, TestbedError)
            and error.errno in LOST_OUTPUT
            and not error.filename
        ):
            raise
        result = failure(error)
    try:
        _show(result, as_json)
    except BrokenPipeError:
        raise
    except OSError as error:
        lost = _unwritable(error)
        return result.exit_code or lost
    return result.exit_code


def _show(result: Result, as_json: bool) -> None:
    """Print a result; on a terminal, long lines are broken between words."""
    if as_json:
        print(envelope(result), flush=True)
        return
    if result.text:
        text = coloured(result.text)
        print(text if result.verbatim else _fitted(text, sys.stdout), flush=True)
    if result.message:
        mark = "" if result.ok else f"{result.code} "
        reported = with_pages(result.message)
        message = printable(reported) if "problems" in result.data else indented(reported)
        print(_fitted(f"{mark}{message}", sys.stderr), file=sys.stderr)
    if result.hint:
        print(f"next: {indented(with_pages(result.hint))}", file=sys.stderr)


def _fitted(text: str, stream: TextIO) -> str:
    if not stream.isatty():
        return text
    import shutil

    from orchestrator.cli.text import wrapped

    return wrapped(text, shutil.get_terminal_size().columns)


def _drop_output() -> None:
    """Discard pending output, so that the end of the process does not try again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())


def _unwritable(error: OSError) -> int:
    """Report on stderr that output was lost, if that is possible; return the exit code."""
    _drop_output()
    with suppress(OSError):
        text = f"E-OUTPUT the output cannot be written: {error.strerror}; changes made by the command remain"
        print(f"{text}\nnext: testbed status", file=sys.stderr, flush=True)
    _drop_output()  # of this report too, if stderr is lost as well: Python would end with 120
    return 1


class _WhenUsed(ModuleType):
    """Stands for a package until something of it is used, and not only named by an import."""

    def __getattr__(self, name: str) -> Any:
        from importlib import import_module

        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def main() -> None:
    """Entry point of the `testbed` script."""
    # 60 modules that paramiko imports for `Match exec` in an ssh_config
    sys.modules.setdefault("invoke", _WhenUsed("invoke"))
    # files are readable by the operator only: journals, Ansible's records, saved plans, transcripts
    os.umask(0o077)
    # in a short-lived process, collections during the imports cost more than they free
    gc.set_threshold(50_000, 20, 20)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        code = run(sys.argv[1:])
    except BrokenPipeError:  # `testbed run list | head`: the reader has closed the pipe
        _drop_output()
        code = 0
    except OSError as error:
        code = _unwritable(error)
    # its binding reports what was not collected as leaks, on stderr
    if "duckdb" not in sys.modules:
        # the final collections would take 0.1 s and free nothing that the exit does not
        gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    main()
