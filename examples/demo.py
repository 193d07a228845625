"""The demo behind `make demo`: one emulated lab, two topologies, the same commands an operator
types; each is shown before it runs.

    python examples/demo.py [--inventory DIR]

Exit status 0 if every command succeeded. The lab is stopped however the demo ends, unless it ran
before.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TESTBED = Path(sys.executable).with_name("testbed")
FIRST, SECOND = "examples/topoopt-12.json", "examples/parallel-ring-12.json"
WATCH_S = 5.0
"""How long (s) each job is left to itself: some twenty iterations."""


class Failed(Exception):
    """A command of the demo failed; its own output states why."""


def run(*parts: str) -> None:
    """Show a command, run it on this terminal. Raises: Failed."""
    print(f"\n$ testbed {' '.join(parts)}", flush=True)
    if subprocess.run([TESTBED, *parts], cwd=ROOT, check=False).returncode:
        raise Failed(" ".join(parts))


def ask(*parts: str) -> dict[str, Any]:
    """Run a command for its data. Raises: Failed."""
    done = subprocess.run(
        [TESTBED, *parts, "--json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    try:
        envelope = json.loads(done.stdout)
    except ValueError:
        raise Failed(f"{' '.join(parts)}: {done.stderr.strip()}") from None
    if not envelope["ok"]:
        raise Failed(f"{' '.join(parts)}: {envelope['message']}")
    return dict(envelope["data"])


def watch_job() -> dict[str, Any]:
    """Give the job time to show its speed; then ask as the operator would."""
    time.sleep(WATCH_S)
    run("job", "status")
    return ask("job", "status")


def demo() -> None:
    speeds: list[tuple[str, float]] = []
    for plan in (FIRST, SECOND):
        run("up", "--topology", plan)
        status = watch_job()
        if status["iteration_ms"] is None:
            raise Failed("job status: the job made no iterations; testbed job logs says why")
        speeds.append((Path(plan).stem, status["iteration_ms"]))
        run("run", "show", "last")
    print("\nIteration time of the same job, which ran through the second change:")
    widest = max(ms for _, ms in speeds)
    for name, ms in speeds:
        print(f"  {name:<18} {ms:7.1f} ms  {'█' * max(1, round(40 * ms / widest))}")
    history = ask("run", "list")["runs"]
    print("\nRecorded (plan, journal in line protocol, Ansible's output, iterations):")
    for r in history[:2]:
        print(f"  {r['id']}  {r['plan_name']}  {ask('run', 'show', str(r['id']))['journal']}")
    print("\nThe second change on one page, before and after; open it in a browser:")
    run("experiment", "report", str(history[0]["id"]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--inventory", type=Path, help="an emulated inventory other than inventory/emulated"
    )
    options = parser.parse_args()
    if options.inventory:
        os.environ["TESTBED_INVENTORY"] = str(options.inventory.resolve())
    began = time.monotonic()
    code, ours = 0, False
    try:
        ours = not ask("lab", "status").get("running")
        run("lab", "start", "--free-ports")
        os.environ["TESTBED_INVENTORY"] = ask("lab", "start", "--free-ports")["inventory"]
        demo()
        run("down", "--yes")
    except Failed as failure:
        print(f"\ndemo: failed at: testbed {failure}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    finally:
        if ours:
            subprocess.run([TESTBED, "lab", "stop"], cwd=ROOT, check=False)
    print(f"\ndemo took {time.monotonic() - began:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
