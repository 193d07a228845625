"""Command lines in this process: what `testbed` prints, without another Python that imports all."""

from __future__ import annotations

import os
from contextlib import chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from orchestrator.cli import main


def typed(*argv: object, at: Path, **environment: str) -> CompletedProcess[str]:
    """What `testbed` prints for these words in the directory `at`, with further variables."""
    words = [str(word) for word in argv]
    out, err = StringIO(), StringIO()
    mask = os.umask(0o077)  # as in a process of its own
    try:
        with (
            chdir(at),
            patch.dict(os.environ, environment),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            code = main.run(words)
    except SystemExit as ended:  # a shell that asks for completions
        code = int(ended.code or 0)
    finally:
        os.umask(mask)
    return CompletedProcess(words, code, out.getvalue(), err.getvalue())
