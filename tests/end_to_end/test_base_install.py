"""`testbed up` without the packages of any extra."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.end_to_end.conftest import ROOT, Lab
from tests.extras import only_in


def test_up_verify_and_down_need_no_extra(lab: Lab) -> None:
    absent = only_in(["all"])
    assert {"matplotlib", "starlette", "influxdb_client", "pyvisa", "asyncssh", "torch"} <= {
        *absent
    }
    program = f"""
import sys
sys.modules.update(dict.fromkeys({absent!r}))
from optical_testbed_command import main
sys.exit(main())
"""
    plan = lab.plan("pair", [("gpu01", "gpu02")])
    for argv in (["up", "--topology", str(plan)], ["verify"], ["status"], ["down", "--yes"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *argv, "--json"],
            env=lab.env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["ok"]
