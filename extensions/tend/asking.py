"""Asks a proposer, in a process of its own: one that fails, waits, writes or ends itself costs a
trial and not the loop. What it returns is only a text, which is read like any plan's file.

`python -m extensions.tend.asking MODULE:NAME` is that process: the view on stdin, the answer on
stdout, both JSON.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from tempfile import TemporaryFile
from typing import IO, Any

import optical_testbed_home
from optics import BadPlugin

ASK_S = 60.0
"""A proposer has this long (s)."""
LOOK_S = 0.05
MOST_BYTES = 4 << 20
"""Of an answer."""
MOST_FILE_BYTES = 1 << 30
"""Of a file that a proposer writes."""
PR_SET_PDEATHSIG = 1
HINT = "mend it, or leave --proposer out"


async def proposed(
    spec: str, view: Mapping[str, Any], ask_s: float = ASK_S
) -> tuple[str, str] | None:
    """Name and text of the plan that it proposes; None: none now. spec: MODULE:NAME of a function
    of the view. Raises: BadPlugin - it has no proper answer in time.
    """
    with TemporaryFile() as told, TemporaryFile() as answer:
        told.write(json.dumps(view).encode())
        told.seek(0)
        process = _begun(spec, told, answer)
        try:
            async with asyncio.timeout(ask_s):
                while True:
                    if process.poll() is not None:
                        break
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise BadPlugin(f"{spec}: no answer within {ask_s:g} s", hint=HINT) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        answer.seek(0)
        return checked(spec, answer.read(MOST_BYTES + 1))


def _begun(spec: str, told: IO[bytes], answer: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "extensions.tend.asking", spec],
        stdin=told,
        stdout=answer,
        stderr=subprocess.DEVNULL,
        env=optical_testbed_home.environment(),
        start_new_session=True,
    )


def checked(spec: str, answer: bytes) -> tuple[str, str] | None:
    """What the answer of that process says. Raises: BadPlugin."""
    if len(answer) > MOST_BYTES:
        raise BadPlugin(f"{spec}: answered more than {MOST_BYTES >> 20} MiB", hint=HINT)
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        raise BadPlugin(f"{spec}: ended without an answer", hint=HINT) from None
    if isinstance(found, dict) and isinstance(found.get("error"), str):
        raise BadPlugin(f"{spec}: {found['error'][:400]}", hint=HINT)
    if found is None:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("plan"), dict):
        raise BadPlugin(f"{spec}: wanted None, or a mapping with name and plan", hint=HINT)
    name = "".join(c for c in str(found.get("name", "")) if c.isprintable())[:64]
    return name or "unnamed", json.dumps(found["plan"])


def main(spec: str) -> None:
    """Be that process, which ends with the loop and stops by itself where it runs away."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    cpu_s = int(ASK_S) * (os.cpu_count() or 1)
    for kind, most in ((resource.RLIMIT_FSIZE, MOST_FILE_BYTES), (resource.RLIMIT_CPU, cpu_s)):
        hard = resource.getrlimit(kind)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (soft, hard))
    view, out = json.load(sys.stdin), os.dup(1)
    os.dup2(2, 1)  # what the proposer prints is no answer
    try:
        module, _, name = spec.partition(":")
        text = json.dumps(getattr(import_module(module), name)(view))
    except BaseException as error:  # a third party's function may raise anything
        text = json.dumps({"error": f"{type(error).__name__}: {error}"})
    with os.fdopen(out, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main(sys.argv[1])
