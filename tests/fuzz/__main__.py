"""Fuzz with atheris: `python -m tests.fuzz [all | NAME...] [--runs N] [--keep]`.

Coverage of this project's code guides what is tried next, beginning with the kept corpus. An input
that breaks a promise is written to the current directory as crash-NAME-... and the run ends with
exit code 77. --keep adds to the corpus what covers something new, in its smallest form, up to
`MOST_KEPT` files of a target.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
MOST_KEPT = 40
MOST_KEPT_BYTES = 8_000
MEMORY_MB = 1024
SECONDS_EACH = 5


def main() -> int:
    """Fuzz every target asked for, each in a process of its own; the last line says how many inputs
    each had.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="*", default=["all"])
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--one", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        return one(asked.one[0], asked.one[1:])
    from tests.fuzz.targets import targets

    known = list(targets())
    names = known if asked.names == ["all"] else asked.names
    if unknown := sorted(set(names) - set(known)):
        print(f"no target {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    broken = [name for name in names if not _run(name, asked.runs, asked.keep)]
    print(
        f"{len(names) - len(broken)} of {len(names)} targets kept their promises"
        + "".join(f"\n  not: {name}" for name in broken)
    )
    return 77 if broken else 0


def _run(name: str, runs: int, keep: bool) -> bool:
    kept = CORPUS / name
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="testbed-fuzz-") as folder:
        found, text = Path(folder) / "found", Path(folder) / "message"
        found.mkdir()
        text.write_text(_dictionary(kept))
        limits = [
            f"-runs={runs}",
            "-max_len=2048",
            "-len_control=50",
            f"-timeout={SECONDS_EACH}",
            f"-rss_limit_mb={MEMORY_MB}",
        ]
        if text.stat().st_size:  # an empty dictionary is an error to the fuzzer
            limits.append(f"-dict={text}")
        options = [
            *limits,
            f"-artifact_prefix=crash-{name}-",
            "-print_final_stats=1",
            "-verbosity=0",
        ]
        command = [
            sys.executable,
            "-m",
            "tests.fuzz",
            "--one",
            name,
            *options,
            str(found),
            str(kept),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        output = done.stdout + done.stderr
        ran = re.search(r"number_of_executed_units:\s*(\d+)", output)
        peak = re.search(r"peak_rss_mb:\s*(\d+)", output)
        rate = re.search(r"average_exec_per_sec:\s*(\d+)", output)
        figures = [found and found[1] for found in (ran, rate, peak)]
        print(
            f"{name:<26} {figures[0]} inputs, {figures[1]}/s, {figures[2]} MB, exit {done.returncode}",
            flush=True,
        )
        if done.returncode:
            print(
                "\n".join(
                    line for line in output.splitlines() if not line.startswith(("INFO", "stat::"))
                )[-4000:],
                flush=True,
            )
        if keep and not done.returncode:
            from tests.fuzz.smallest import keep_smallest

            keep_smallest(name, kept, found, MOST_KEPT, MOST_KEPT_BYTES)
    return done.returncode == 0


def _dictionary(kept: Path) -> str:
    """The words of the kept corpus, for the fuzzer to put together again."""
    argv = {
        word
        for file in sorted(kept.iterdir())
        for word in re.findall(rb"[A-Za-z0-9_.:/@*-]{3,24}", file.read_bytes())
    }
    return "".join(f'"{word.decode()}"\n' for word in sorted(argv)[:400])


def one(name: str, options: list[str]) -> int:
    """Fuzz one target in this process; does not return."""
    import atheris

    from tests.fuzz.targets import INSTRUMENTED, targets

    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        fuzz = targets()[name]
    atheris.Setup([sys.argv[0], *options], fuzz)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
