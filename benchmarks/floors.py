"""Floors: what a command that does nothing takes, with the same imports, the same Ansible, on the
same hosts, in the same minute.

A *null command* imports what a command of the program imports, and ends. A *null up* then has
Ansible play one `raw` task, `true`, on every host, started as the program starts it: by
ansible-runner, with the lab's inventory, keys and forks. But for its imports neither has work of
the program's, so what a command takes beyond them is the program's, its agents' and the devices'.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.bench_lab import BenchLab, programs

PLAY = """\
- name: Null
  hosts: all
  gather_facts: false
  tasks:
    - name: nothing
      ansible.builtin.raw: "true"
"""
NULL = """\
import json, sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

given = json.load(sys.stdin)
for name in given["modules"]:
    with suppress(ImportError):  # parts of a package that only itself can import
        import_module(name)
if given["hosts"]:
    from orchestrator.hosts.runner import Ansible

    ansible = Ansible(Path(given["inventory"]), Path(given["folder"]))
    ansible.expect(given["play"])
    play = ansible.play(given["play"], given["hosts"], {})
    ansible.close()
    sys.exit(sorted(set(given["hosts"]) - set(play.reported)) or None)
"""


def modules(lab: BenchLab, *command: str | Path) -> list[str]:
    """What `testbed COMMAND` imports, in order. Raises: CalledProcessError - it fails."""
    python, testbed = (programs(lab.tree) / name for name in ("python", "testbed"))
    argv = [python, "-X", "importtime", testbed, *command]
    done = subprocess.run(
        argv, env=lab.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True
    )
    return re.findall(r"^import time: .*\| *(\S+)$", done.stderr, re.MULTILINE)


def null_s(lab: BenchLab, imported: Sequence[str], *, play: bool) -> float:
    """How long (s) a null command takes that imports these modules, with `play` a null up.

    Raises: CalledProcessError - it fails.
    """
    file = lab.folder / "null.yml"
    file.write_text(PLAY)
    hosts = sorted(lab.ask("status")["hosts"]) if play else []
    where = {"inventory": str(lab.inventory), "folder": str(lab.folder / "null"), "play": str(file)}
    given, began = json.dumps({"modules": imported, "hosts": hosts, **where}), time.perf_counter()
    subprocess.run(
        [programs(lab.tree) / "python", "-P", "-c", NULL],
        env=lab.env,
        input=given,
        text=True,
        check=True,
    )
    return time.perf_counter() - began
