"""Where verbs went that had another name, so that a command typed from memory is answered with its
new place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optics.errors import Usage

MOVED: Mapping[str, str] = {
    "prewire": "plan --prewire",
    "rehearse": "plan --rehearse",
    "history": "run list",
    "show": "run show",
    "note": "run note",
    "queue --start": "service start queue",
    "queue --stop": "service stop queue",
    "queue --foreground": "service run queue",
    "queue": "job queue",
    "guard --stop": "service stop guard",
    "guard": "service start guard",
    "turn --stop": "service stop schedule",
    "turn": "service start schedule",
    "adapt --stop": "service stop adapt",
    "adapt": "service start adapt",
    "coordinate": "service start pacing",
    "serve": "service run metrics",
    "telemetry start": "service start sink",
    "telemetry stop": "service stop sink",
    "telemetry follow": "service run sink",
    "lock --after": "lock reserve",
    "lock --device": "lock reserve",
    "lock --for": "lock reserve",
    "lock --hosts": "lock reserve",
    "lock --ports": "lock reserve",
    "unlock": "lock release",
    "driver": "devices driver",
    "exec": "host exec",
    "shell": "host shell",
    "report": "experiment report",
    "compare": "experiment compare",
    "reproduce": "experiment reproduce",
    "sweep": "experiment sweep",
    "grafana": "telemetry grafana",
    "examples --copy": "examples copy",
    "schema": "examples schema",
    "version": "--version",
}
"""The new place of each old name: a verb, or a verb with its second word or an option of it."""


def refuse_moved(argv: Sequence[str]) -> None:
    """Raises: Usage - these words, a verb and what follows it, are a command that has another name
    now.
    """
    for old, new in MOVED.items():
        first, _, second = old.partition(" ")
        options = argv[1:] if argv[1:2] and argv[1].startswith("-") else ()
        if argv[:1] == [first] and (not second or second in (*argv[1:2], *options)):
            raise Usage(
                f"`testbed {old}` is now `testbed {new}`",
                hint=f"testbed {new} --help" if " " in new else f"testbed {new}",
            )
