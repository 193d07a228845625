"""How long `testbed --help` takes from start to end of the process, median of 21, compared with a
bare `import typer`.

Side figures: the interpreter alone, `ansible --version`, and a second verb (`testbed run list` on
an empty store).

    python benchmarks/cli_start.py [--against PATH]
PATH: another checkout, whose command alternates with this one's.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bench_lab import ROOT, against, environment, programs
from benchmarks.harness import verdict

LIMIT_MS = 100.0
ROUNDS = 21
HEAVY = ("paramiko", "pyvisa", "ansible", "ansible_runner", "influxdb_client", "torch")


def times_ms(*commands: list[str], env: dict[str, str], rounds: int) -> list[list[float]]:
    """Milliseconds per run of each command; the commands take turns, so that a busy moment hits all
    of them.
    """
    found: list[list[float]] = [[] for _ in commands]
    for command in commands:  # once unmeasured: byte code, page cache
        subprocess.run(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
        )
    for _ in range(rounds):
        for command, times in zip(commands, found, strict=True):
            began = time.perf_counter()
            subprocess.run(
                command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
            )
            times.append((time.perf_counter() - began) * 1e3)
    return found


def imported(python: str) -> list[str]:
    """Which heavy packages building the whole command line imports."""
    program = f"import sys, orchestrator.cli.main as m; m.app(); print(*[p for p in {HEAVY!r} if p in sys.modules])"
    return subprocess.run(
        [python, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()


def main() -> int:
    python = sys.executable
    trees = against(sys.argv[1:])
    with tempfile.TemporaryDirectory() as home:
        env = environment() | {f"TESTBED_{name}_DIR": home for name in ("DATA", "STATE", "LOCK")}
        bare_ms, peer_ms, history_ms, *helps_ms = times_ms(
            [python, "-c", "pass"],
            [python, "-c", "import typer"],
            [str(programs(ROOT) / "testbed"), "run", "list"],
            *([str(programs(tree) / "testbed"), "--help"] for tree in trees),
            env=env,
            rounds=ROUNDS,
        )
        (ansible_ms,) = times_ms(
            [str(Path(python).parent / "ansible"), "--version"], env=env, rounds=3
        )
    heavy = imported(python)
    values = {
        tree.name: round(statistics.median(times), 1)
        for tree, times in zip(trees, helps_ms, strict=True)
    }
    for tree, times in zip(trees, helps_ms, strict=True):
        spread = f"fastest {min(times):6.1f}   slowest {max(times):6.1f}"
        print(f"testbed --help    median {values[tree.name]:6.1f} ms   {spread}   {tree.name}")
    bare, peer = statistics.median(bare_ms), statistics.median(peer_ms)
    print(
        f"  of which Python itself {bare:.1f} ms, import typer {peer - bare:.1f} ms, the program {values[ROOT.name] - peer:.1f} ms"
    )
    print(f"testbed run list   median {statistics.median(history_ms):6.1f} ms")
    print(f"ansible --version median {statistics.median(ansible_ms):6.1f} ms")
    print(f"heavy imports     {', '.join(heavy) or 'none'}")
    return verdict(
        "cli_start",
        values[ROOT.name],
        "ms",
        LIMIT_MS,
        "at most",
        also=not heavy,
        python_ms=round(bare, 1),
        peer_import_typer_ms=round(peer, 1),
        peer_ansible_version_ms=round(statistics.median(ansible_ms), 1),
        heavy_imports=heavy,
        trees=values,
    )


if __name__ == "__main__":
    sys.exit(main())
