"""The command line: one subcommand, JSON lines on stdout.

Each subcommand imports only what it needs: on an emulated lab twelve of them start at the same moment on two cores.
"""

from __future__ import annotations

import contextlib
import json
import sys

from agent.basics import VAR, Failure, bad, read_json, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agent.shapes import Json


def given(argv: list[str]) -> Any:
    """Read the subcommand's input: JSON from stdin, or gzipped and in base64 as an argument."""
    if len(argv) > 2:
        return unpack(argv[2])
    return json.load(sys.stdin)


def do_provision(argv: list[str]) -> list[Json]:
    from agent.provision import provision

    return [provision(given(argv))]


def do_boot(_: list[str]) -> list[Json]:
    from agent.provision import provision

    facts = read_json(VAR + "/provision.json")
    return [provision(facts)] if facts else []


def do_install(argv: list[str]) -> list[Json]:
    return do_provision(argv) + do_start(argv)


def do_call(argv: list[str]) -> list[Json]:
    from agent.calls import call

    requests = given(argv)
    return call(requests if isinstance(requests, list) else [requests])


def do_stage(argv: list[str]) -> list[Json]:
    from agent.calls import call

    requests = given(argv)
    return call([dict(r, op="stage") for r in (requests if isinstance(requests, list) else [requests])])


def do_start(_: list[str]) -> list[Json]:
    from agent.watchdog import start

    return [start()]


def do_stop(_: list[str]) -> list[Json]:
    from agent.watchdog import stop

    return [stop()]


def do_status(_: list[str]) -> list[Json]:
    from agent.calls import alive

    return [alive() or {"ok": False, "error": "not running"}]


def do_collect(argv: list[str]) -> list[Json]:
    """Print one job's directory as a compressed archive in base64: what `collect.yml` brings home."""
    import base64
    import io
    import tarfile

    from agent.jobs import JOB_NAME

    name = argv[2] if len(argv) > 2 else ""
    if not JOB_NAME.match(name):
        raise bad(f"name: {name!r} is not a job's name")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(VAR + "/jobs/" + name, arcname=name)
        for ending, shown in ((".json", "/job.json"), (".exit", "/exit")):
            with contextlib.suppress(FileNotFoundError):  # a job that runs has no exit status
                archive.add(VAR + "/started/" + name + ending, arcname=name + shown)
    return [{"archive": base64.b64encode(buffer.getvalue()).decode()}]


COMMANDS = {
    "boot": do_boot,
    "call": do_call,
    "collect": do_collect,
    "install": do_install,
    "provision": do_provision,
    "stage": do_stage,
    "start": do_start,
    "status": do_status,
    "stop": do_stop,
}


def main(argv: list[str], usage: str | None) -> int:
    """Run one subcommand; results go to stdout as JSON lines, the exit status is 1 when anything was refused."""
    command = argv[1] if len(argv) > 1 else ""
    if command == "gpus":
        from agent.gpus import watch

        return watch(float(argv[2]))
    if command == "serve":
        from agent.watchdog import serve

        return serve()
    if command not in COMMANDS:
        sys.stderr.write(usage or "")
        return 2
    try:
        replies = COMMANDS[command](argv)
    except Failure as e:
        replies = [{"ok": False, "code": e.code, "error": str(e)}]
    except (OSError, ValueError) as e:
        replies = [{"ok": False, "code": "failed", "error": f"{command}: {e}"}]
    for reply in replies:
        print(json.dumps(reply, separators=(",", ":")))
    return 0 if all(r.get("ok", True) for r in replies) else 1
