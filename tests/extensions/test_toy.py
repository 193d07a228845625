"""A mechanism is a folder: a new attachment is read from a plan, given, shown and taken away, and
nothing else changes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from tests.house.repository import ROOT

PARTS = {
    "__init__": "",
    "plan": """
        from orchestrator.inventory.schema import Edge
        from orchestrator.plan.attached import Planned

        class LanternEdge(Edge):
            host: str

        class PlannedLantern(Planned[str]):
            key, section = "lantern", LanternEdge | None

            def read(self, at):
                section = getattr(at.edge, "lantern", None)
                if section is not None and section.host in at.edge.ranks:
                    at.links.problems.add((*self.where, "host"), "a lantern stands beside the job")
                return section and section.host

            def of(self, data):
                return data

            def write(self, value, document):
                document["job"]["lantern"] = {"host": value}

            def hosts(self, value):
                return [value]

        PLANNED = PlannedLantern()
        """,
    "operator": """
        from orchestrator.jobs.attachments import Attachment

        DONE = []

        class Lantern(Attachment[str]):
            key = noun = "lantern"

            async def check(self, value, job, lab, held):
                DONE.append(("check", value, held))

            async def reserve(self, value, job, lab, run):
                return {"oil": 3}

            async def begin(self, value, given, launch):
                DONE.append(("begin", dict(given)))
                return {**given, "lit": True}

            def extra(self, value, given, lab, host):
                return {"LANTERN": f"{value} {given['lit']}"}, {}

            async def status(self, value, given, look):
                return [{"host": value, "oil": given["oil"]}]

            async def stop(self, value, given, session, record):
                DONE.append(("stop", value))

            async def release(self, given):
                DONE.append(("release", given))

        ATTACHMENT = Lantern()
        """,
    "view": """
        from orchestrator.views.attached import View

        class LanternView(View):
            key = measurement = "lantern"

            def text(self, found):
                return f"lantern at {found['host']}, oil for {found['oil']} nights"

        VIEW = LanternView()
        """,
    "measurements": """
        from orchestrator.measurement import COMMON_TAGS, Field, Measurement

        MEASUREMENTS = (Measurement("lantern", "light", (*COMMON_TAGS, "job"), {"oil": Field("int", "", "left")}, "once"),)
        """,
}
RUN = """
import asyncio, json, sys
from pathlib import Path

import extensions
from orchestrator import extensions as known

extensions.__path__.append(sys.argv[1])
known.NAMES.append("lantern")

from orchestrator.cli import render
from orchestrator.jobs import ports as job_ports
from orchestrator.jobs.jobs import Jobs
from orchestrator.plan.reader import read_plan
from orchestrator.plan.written import document_of
from orchestrator.store.store import Store
from tests.change.fleet import TENANCY, plan_text, ring
from tests.change.living import OTHER, Living

said = {}
async def unsampled(*_, **__):
    "These hosts keep no port counters."
job_ports.fetch_samples = unsampled
async def main():
    with Store(Path(sys.argv[2]) / "store.sqlite3") as store:
        living = Living(store, Path(sys.argv[2]))
        living.start()
        launch = living.fleet.launch
        async def told(job, run, *, resume=False, extra):
            said["env"] = extra("gpu01")[0]
            await launch(job, run, resume=resume)
        living.fleet.launch = told
        text = plan_text("with", *ring(), job={**OTHER, "ranks": OTHER["ranks"][:3], "rings": [], "lantern": {"host": sys.argv[3]}})
        plan = read_plan(text, "plan.json", living.lab)
        again = json.dumps(document_of(plan))
        said["again"] = read_plan(again, "again.json", living.lab).job == plan.job and "lantern" in again
        await living.change(text)
        jobs = Jobs(living.session, store, TENANCY, Path(sys.argv[2]))
        said["shown"] = render.job(await jobs.status(living.job))
        said["kept"] = living.job.spec.given
        await jobs.stop(living.job, "stopped")
        said["after"] = render.job(await jobs.status(living.job))
asyncio.run(main())
from extensions.lantern.operator import DONE
print(json.dumps({**said, "done": DONE}))
"""


def run(tmp_path: Path, host: str) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "more" / "lantern"
    folder.mkdir(parents=True)
    for name, text in PARTS.items():
        (folder / f"{name}.py").write_text(dedent(text))
    argv = [sys.executable, "-c", RUN, str(folder.parent), str(tmp_path), host]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100)


def test_a_new_attachment_is_a_folder_and_its_name(tmp_path: Path) -> None:
    done = run(tmp_path, "gpu04")
    assert done.returncode == 0, done.stderr[-2000:]
    reply = json.loads(done.stdout.splitlines()[-1])
    assert reply["again"] and reply["env"] == {"LANTERN": "gpu04 True"}
    assert "lantern at gpu04, oil for 3 nights" in reply["shown"]
    given = {"oil": 3, "lit": True}
    assert reply["kept"] == {"lantern": given}
    assert reply["done"][:4] == [
        ["check", "gpu04", None],
        ["begin", {"oil": 3}],
        ["stop", "gpu04"],
        ["release", given],
    ]
    assert all(each == ["release", given] for each in reply["done"][4:])


def test_what_it_says_is_wrong_is_said_at_its_place_in_the_plan(tmp_path: Path) -> None:
    done = run(tmp_path, "gpu02")
    assert (
        done.returncode == 1 and "job.lantern.host: a lantern stands beside the job" in done.stderr
    )
