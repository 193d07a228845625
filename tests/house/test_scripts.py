"""What continuous integration and maintainers start: with which environment, and not over anything
that is theirs.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.house.repository import ROOT


def test_continuous_integration_passes_on_certificates_and_package_sources_and_nothing_else(
    tmp_path: Path,
) -> None:
    make = tmp_path / "make"
    # the shell adds to what `env` prints
    make.write_text('#!/bin/sh\necho "$@" $(cat) >&2\ncat /proc/self/environ\n')
    make.chmod(0o755)
    kept = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SSL_CERT_FILE": "/certificates of all",
        "REQUESTS_CA_BUNDLE": "/more",
        "PIP_FIND_LINKS": "/wheels",
        "npm_config_cafile": "/more",
        "https_proxy": "http://127.0.0.1:9",
    }
    dropped = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": "/elsewhere",
        "LANG": "tr_TR.UTF-8",
        "TESTBED_INVENTORY": "/lab",
        "TERM": "dumb",
    }
    words = {"input": "typed", "capture_output": True, "text": True, "check": True}
    done = subprocess.run([ROOT / ".ci" / "run"], env=kept | dropped, cwd=tmp_path, **words)  # type: ignore[call-overload]
    assert done.stderr == "test\n", "one target, and no input"
    found = dict(each.split("=", 1) for each in done.stdout.split("\0") if each)
    assert {
        name: value for name, value in found.items() if name not in ("PWD", "OLDPWD", "SHLVL", "_")
    } == kept


def test_a_fresh_machine_is_not_made_in_a_directory_that_holds_something_else(
    tmp_path: Path,
) -> None:
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "mine").write_text("mine")
    script = ROOT / "scripts" / "fresh-machine"
    refused = subprocess.run([script, tmp_path], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "") and "is not empty" in refused.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["machine", "mine"]
    usage = subprocess.run([script], capture_output=True, text=True, check=False)
    assert usage.returncode == 2 and "usage: scripts/fresh-machine" in usage.stdout
