"""The command line: one subcommand, JSON lines on stdout.

Each subcommand imports only what it needs: on an emulated lab twelve of them start at the same
moment on two cores.
"""

from __future__ import annotations

import contextlib
import json
import sys

from agent.basics import VAR, Failure, read_json, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from agent.shapes import Json

COMMANDS = (
    "boot",
    "call",
    "check",
    "collect",
    "install",
    "provision",
    "rdma",
    "remove",
    "start",
    "status",
    "stop",
    "try",
)


def given(argv: list[str]) -> Any:
    """Read the subcommand's input: JSON from stdin, or gzipped and in base64 as an argument."""
    return unpack(argv[2]) if len(argv) > 2 else json.load(sys.stdin)


def replies(command: str, argv: list[str]) -> list[Json]:
    """Run one of COMMANDS."""
    if command in ("boot", "install", "provision"):
        from agent.host.provision import provision

        boot = command == "boot"
        facts = read_json(VAR + "/provision.json") if boot else given(argv)
        done = [provision(facts, boot=boot)] if facts or not boot else []
        return done + replies("start", argv) if command == "install" else done
    if command == "check":
        return [check(given(argv))]
    if command == "remove":
        from agent.removal import remove

        return [remove()]
    if command in ("start", "stop"):
        from agent import watchdog
        from agent.host import shares

        done = [watchdog.start() if command == "start" else watchdog.stop()]
        for name in shares.names():
            own = shares.run(command, name)
            done[0].update({key: True for key in ("started", "stopped") if own.get(key)})
        return done
    if command == "rdma":
        from agent.host.rdma import rdma

        return [{"rdma": rdma()}]
    if command == "try":
        from agent.mechanism import tried

        return tried()
    if command == "collect":
        return [collect(argv[2] if len(argv) > 2 else "")]
    from agent.calls import alive, call

    if command == "status":
        return [alive() or {"ok": False, "error": "not running"}]
    requests = given(argv)
    return call(requests if isinstance(requests, list) else [requests])


def check(facts: Json) -> Json:
    """What `install` would change; whether this very agent runs; digests of its files and of the
    archive they came in.
    """
    from agent.basics import own_sha, read
    from agent.calls import alive
    from agent.host.provision import provision

    existing, sha = alive(), own_sha()
    found = {
        "programs": sha,
        "archive": read(VAR + "/archive.digest"),
        "running": bool(existing and existing["committer"] == sha),
    }
    return {**provision(facts, check=True), **found}


def collect(name: str) -> Json:
    """One job's directory as a compressed archive in base64, for `collect.yml`."""
    import base64
    import io
    import tarfile

    from agent.jobs.processes import job_name

    job_name({"name": name})
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(VAR + "/jobs/" + name, arcname=name)
        for ending, shown in ((".json", "/job.json"), (".exit", "/exit")):
            with contextlib.suppress(FileNotFoundError):  # a job that runs has no exit status
                archive.add(VAR + "/started/" + name + ending, arcname=name + shown)
    return {"archive": base64.b64encode(buffer.getvalue()).decode()}


def main(argv: list[str], usage: str | None) -> int:
    """Run one subcommand; results go to stdout as JSON lines, the exit status is 1 when anything
    was refused.
    """
    command = argv[1] if len(argv) > 1 else ""
    if command == "gpus":
        from agent.measure.gpus import watch

        return watch(float(argv[2]))
    if command == "serve":
        from agent.watchdog import serve

        return serve()
    if command not in COMMANDS:
        sys.stderr.write(usage or "")
        return 2
    try:
        found = replies(command, argv)
    except Failure as e:
        found = [{"ok": False, "code": e.code, "error": str(e)}]
    except (OSError, ValueError) as e:
        found = [{"ok": False, "code": "failed", "error": f"{command}: {e}"}]
    for reply in found:
        print(json.dumps(reply, separators=(",", ":")))
    return 0 if all(r.get("ok", True) for r in found) else 1
