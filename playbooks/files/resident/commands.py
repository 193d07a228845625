"""The command line: one subcommand, JSON lines on stdout."""

import base64
import io
import json
import sys
import tarfile

from resident.basics import VAR, Failure, bad, read
from resident.calls import alive, call
from resident.jobs import JOB_NAME
from resident.provision import provision
from resident.watchdog import serve, start, stop


def collect(name):
    """Print one job's directory as a compressed archive in base64: what `collect.yml` brings home."""
    if not JOB_NAME.match(name):
        raise bad(f"name: {name!r} is not a job's name")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(VAR + "/jobs/" + name, arcname=name)
    return {"archive": base64.b64encode(buffer.getvalue()).decode()}


def main(argv, usage):
    """Run one subcommand; results go to stdout as JSON lines, the exit status is 1 when anything was refused."""
    command = argv[1] if len(argv) > 1 else ""
    try:
        if command == "serve":
            return serve()
        if command in ("provision", "boot"):
            facts = json.loads(read(VAR + "/provision.json", "null") if command == "boot" else sys.stdin.read())
            replies = [provision(facts)] if facts else []
        elif command in ("stage", "call"):
            given = json.load(sys.stdin)
            given = given if isinstance(given, list) else [given]
            replies = call([dict(r, op="stage") if command == "stage" else r for r in given])
        elif command in ("start", "stop", "status", "collect"):
            reply = {"start": start, "stop": stop, "status": alive, "collect": lambda: collect(argv[2])}[command]()
            replies = [reply or {"ok": False, "error": "not running"}]
        else:
            sys.stderr.write(usage)
            return 2
    except Failure as e:
        replies = [{"ok": False, "code": e.code, "error": str(e)}]
    except (OSError, ValueError) as e:
        replies = [{"ok": False, "code": "failed", "error": f"{command}: {e}"}]
    for reply in replies:
        print(json.dumps(reply, separators=(",", ":")))
    return 0 if all(r.get("ok", True) for r in replies) else 1
