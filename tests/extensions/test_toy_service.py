"""A service is a folder, too: its kind, verbs, arms and views are found by the extension's name,
and nothing else changes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from tests.house.repository import ROOT

PARTS = {
    "__init__": """
        VERBS = {"job chimes": "Show how often it rang."}
        """,
    "service": """
        from dataclasses import dataclass

        from orchestrator.background.kind import Kind
        from orchestrator.background.options import ServiceOptions, option
        from orchestrator.background.state import ServiceState
        from orchestrator.background.work import ServiceReport, emit, serving
        from orchestrator.session import load_lab
        from orchestrator.store.keys import key_of

        @dataclass(frozen=True, slots=True)
        class ChimeOptions(ServiceOptions):
            times: int = option(3, "--times", "So often.", metavar="N", least=1)

        @dataclass(frozen=True, slots=True)
        class ChimeState(ServiceState):
            rung: int = 0

        @dataclass(frozen=True, slots=True)
        class ChimeReport(ServiceReport):
            rung: int

            def text(self) -> str:
                return f"Rang {self.rung} times"

        async def ring(command, *, notify, options) -> ChimeReport:
            key = key_of(load_lab(command.inventory))
            with serving(KIND.file(command.settings, key, KIND.own(command.settings, options))) as file:
                for rung in range(options.times):
                    emit(notify, "stroke", "ding")
                    file.now(state="ringing", rung=rung + 1)
            return ChimeReport(options.times)

        KIND = Kind("chime", ChimeState, "Ring every hour.", "extensions.chime.service:ring", ChimeOptions, of="lab")
        """,
    "command": """
        import typer

        from extensions.chime import VERBS
        from orchestrator.cli.call import Result, verb

        app, job = typer.Typer(), typer.Typer()

        @verb(job, "chimes", VERBS["job chimes"], examples="testbed job chimes")
        def chimes(call):
            return Result({"times": 7}, "seven", hint="testbed service start chime")
        """,
    "shapes": """
        DATA = {"job chimes": ({"times": int},)}
        """,
    "arm": """
        from typing import Literal

        from extensions.chime.service import ChimeOptions
        from orchestrator.experiments.files.scenario.values import ArmService

        class ChimeArm(ArmService):
            key, section = "chime", Literal["soft", "loud"] | None

            def wrong(self, how, setups):
                if how == "loud" and len(setups) < 2:
                    yield "nobody hears it"

            def options(self, how):
                return (ChimeOptions(times=9 if how == "loud" else 1),)

            def begun(self, how, setups):
                return dict.fromkeys(setups, how) if how else {}

        ARM = ChimeArm()
        """,
    "measurements": """
        from orchestrator.measurement import COMMON_TAGS, Field, Measurement

        MEASUREMENTS = (Measurement("chime", "a stroke", COMMON_TAGS, {"rung": Field("int", "", "so far")}, "hourly"),)
        """,
    "live": """
        from orchestrator.views.services import Live, ServiceView

        class LiveChime(Live):
            def __init__(self):
                self.rung, self.fresh, self.present = 0, False, None

            def point(self, point):
                self.rung, self.fresh = point.fields["rung"], True
                return (self.text(), {"rung": self.rung}) if self.rung > 1 else None

            def state(self, state):
                self.present = state

            def taken(self):
                fresh, self.fresh = self.fresh, False
                return fresh

            def text(self):
                return f"rung {self.rung} times" if self.rung else ""

            def json(self):
                return {"message": self.text(), "bad": False, "bars": []} if self.rung else None

        class ChimeView(ServiceView):
            name = measurement = "chime"

            def live(self):
                return LiveChime()

            def section(self, c, source):
                from orchestrator.views.report.model import ReportSection

                c.sections.append(ReportSection("chime", f"Strokes of run {source.record.id}"))

        SERVICE_VIEW = ChimeView()
        """,
}
BEGIN = """
import json, os, sys
from pathlib import Path

import extensions
from orchestrator import extensions as known

extensions.__path__.append(sys.argv[1])
known.NAMES.append("chime")
said = {}
"""


def run(tmp_path: Path, body: str) -> dict[str, object]:
    folder = tmp_path / "more" / "chime"
    folder.mkdir(parents=True)
    for name, text in PARTS.items():
        (folder / f"{name}.py").write_text(dedent(text))
    argv = [
        sys.executable,
        "-c",
        BEGIN + dedent(body) + "\nprint(json.dumps(said))",
        str(folder.parent),
        str(tmp_path),
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    reply: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return reply


def test_its_kind_is_found_and_read_with_the_others(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        """
        from orchestrator.background import registry
        from tests.background.toy import settings

        here = settings(Path(sys.argv[2]))
        KIND = registry.kind("chime")
        with KIND.file(here, "lab", KIND.own(here)) as file:
            file.now(state="ringing", rung=3)
            said["states"] = {name: str(state) for name, state in registry.states(here, "lab/ann", "lab").items()}
        said["kinds"] = [each.name for each in registry.kinds()]
        """,
    )
    states = result["states"]
    assert isinstance(states, dict) and states["chime"].startswith("ringing, pid ")
    assert isinstance(result["kinds"], list) and result["kinds"][-1] == "chime"


def test_its_verbs_are_made_from_its_kind_and_those_of_groups_listed_run_and_described(
    tmp_path: Path,
) -> None:
    result = run(
        tmp_path,
        """
        import os
        from contextlib import redirect_stdout
        from io import StringIO
        from orchestrator.cli.call import Call
        from orchestrator.cli.main import run

        for name in ("DATA", "STATE", "LOCK"):
            os.environ[f"TESTBED_{name}_DIR"] = str(Path(sys.argv[2], name))
        for words in (
            ["--help"], ["service", "start", "--help"], ["service", "start", "chime", "--help"],
            ["service", "run", "chime", "--times", "2"],
            ["service", "run", "chime", "--json"], ["service", "run", "chime", "--jsonl"],
            ["service", "status", "chime"], ["service", "stop", "chime"],
            ["job", "--help"], ["job", "chimes", "--json"], ["examples", "schema", "data", "service", "run", "chime"],
        ):
            with redirect_stdout(StringIO()) as out:
                assert run(words) == 0
            said[" ".join(words)] = out.getvalue()
            said.setdefault("imported", [name for name in sys.modules if name.startswith("extensions.chime.")])
        said["here"] = Call("chime", inventory="x").here("testbed service stop chime")
        """,
    )
    assert "chime" not in str(result["--help"]) and not result["imported"], (
        "a list imports no service"
    )
    assert "chime     Ring every hour." in str(result["service start --help"])
    assert "--times N" in str(result["service start chime --help"]) and "[default: 3; x>=1]" in str(
        result["service start chime --help"]
    )
    ran = str(result["service run chime --times 2"]).splitlines()
    assert [line.split()[1:] for line in ran[:2]] == [["stroke", "ding"]] * 2 and ran[
        2
    ] == "Rang 2 times"
    assert json.loads(str(result["service run chime --json"]))["data"] == {"rung": 3}
    assert [
        json.loads(line)["event"] for line in str(result["service run chime --jsonl"]).splitlines()
    ] == ["stroke"] * 3
    assert str(result["service status chime"]).splitlines()[1].split()[:2] == ["chime", "ended"]
    assert result["service stop chime"] == "No chime service was running\n"
    assert "chimes    Show how often it rang." in str(result["job --help"])
    assert json.loads(str(result["job chimes --json"]))["data"] == {"times": 7}
    assert '"rung"' in str(result["examples schema data service run chime"])
    assert result["here"] == "testbed --inventory x service stop chime"


def test_an_arm_begins_and_ends_it_beside_its_jobs(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        """
        from optics import BadFile
        from orchestrator.cli.call import Call
        from orchestrator.cli.measuring import Tenant
        from orchestrator.experiments.files.scenario.reader import read_scenario
        from tests.experiments.test_scenario_files import GOOD, fetch

        text = GOOD.replace("a: {}", "a: {chime: soft}").replace("[plan.links]", "[plan.links, chime]")
        said["beside"] = read_scenario(text, "s.yaml", fetch).arms["a"].shared
        for name, pair in {"alone": ("soft", "loud"), "same": (", chime]", "]"), "odd": ("soft", "odd")}.items():
            try:
                read_scenario(text.replace(*pair), "s.yaml", fetch)
            except BadFile as error:
                said[name] = error.problems
        from orchestrator.background.kind import Kind
        from extensions.chime.service import ChimeState

        said["done"] = []
        Kind.start = lambda kind, settings, key, log, options: said["done"].append(options.times) or ChimeState(7)
        Kind.stop = lambda kind, settings, key: said["done"].append("stop")
        tenant = Tenant(Call())
        said["message"] = tenant.begin("chime", "soft")
        tenant.end("chime")
        """,
    )
    assert result["beside"] == [["chime", "ann", "soft"]]
    assert "nobody hears it" in str(result["alone"]) and "the arms differ in chime, too" in str(
        result["same"]
    )
    assert "s.yaml:11:14: arms.a.chime: wanted soft or loud" in str(result["odd"])
    assert (result["message"], result["done"]) == ([], [1, "stop"])


def test_viewers_see_what_it_recorded(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        """
        from orchestrator.cli.watchscreen import slot_lines
        from orchestrator.telemetry.lineprotocol import Point
        from orchestrator.telemetry.names import MEASUREMENTS, OF_JOBS
        from orchestrator.views.live.picture import Picture
        from orchestrator.views.live.sections import changed_sections, whole_picture
        from tests.kit.labs import lab_of

        picture = Picture(lab_of("emulated"))
        said["before"] = whole_picture(picture)["services"]
        for rung in (1, 2):
            picture.feed(Point("chime", {"testbed": picture.lab.name, "run": "r1"}, {"rung": rung}, rung))
        said["changes"] = [changed_sections(picture).get("services"), changed_sections(picture).get("services")]
        said["log"] = [event.json() for event in picture.events.log]
        said["line"] = [str(line) for line in slot_lines(picture, 80, unicode=False)]
        said["known"] = ["chime" in MEASUREMENTS, "chime" in OF_JOBS]
        """,
    )
    assert result["before"] == {}
    assert result["changes"] == [
        {"chime": {"message": "rung 2 times", "bad": False, "bars": []}},
        None,
    ]
    log = result["log"]
    assert isinstance(log, list) and [
        (one["event"], one["message"], one["rung"]) for one in log
    ] == [("chime", "rung 2 times", 2)]
    assert result["line"] == ["chime     rung 2 times"] and result["known"] == [True, False]


def test_viewers_and_reports_of_a_lab_ask_it(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        """
        from dataclasses import replace

        from extensions.chime.service import KIND
        from orchestrator.session import load_lab
        from orchestrator.store.keys import key_of
        from orchestrator.store.store import Store
        from orchestrator.views.live import Watcher
        from orchestrator.views.report.gather import gather
        from orchestrator.views.report.page import write_report
        from tests.background.toy import settings

        here = replace(settings(Path(sys.argv[2])), inventory=Path("inventory/emulated"))
        key = key_of(load_lab(here.inventory))
        with Store(here.store_path) as store, KIND.file(here, key, KIND.own(here)) as file:
            file.now(state="ringing", rung=3)
            with Watcher(here, store) as watcher:
                said["rung"] = watcher.picture.services.live["chime"].present.rung
            one = store.new_run("up", key, plan_name="ring", user="ann")
            one.finish("ok")
            page = write_report(gather([store.get(one.id)], store, here, "x")).html
            said["reported"] = f"Strokes of run {one.id}" in page
        """,
    )
    assert result["rung"] == 3 and result["reported"]
