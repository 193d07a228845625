"""Generators and schedules of other distributions: found by entry point, bounded and checked, and
named when they fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from optics import BadFile, BadPlugin
from planner.model.demand import Demand, Group, Infeasible
from planner.model.shape import Lab, Ring, Shape
from planner.registry import (
    MOST_FOUND,
    MOST_SENDS,
    SCHEDULES,
    TOPOLOGIES,
    method,
    plugins,
    schedule,
)
from planner.schedule.bfb import Send
from planner.topology.methods import METHODS, Found, Wanted
from tests.house.repository import ROOT
from tests.kit.command_line import typed

EXAMPLES = {
    "topology": ("acme_topology", "acme-chords"),
    "schedule": ("acme_schedule", "acme-trees"),
}
LAB = Lab(4, 2)
DEMAND = Demand(4, (Group("all", (0, 1, 2, 3), 1 << 20),), np.zeros((4, 4)))
SQUARE = Shape(4, 2, True, (Ring("all", (0, 1, 2, 3)),))
GOOD = Found(SQUARE, "square")
WHO = r"^acme-x \(acme_x:answer of acme-x 1\.2\): "


class Installed:
    """Distributions as an installation leaves them, in a folder on sys.path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(
        self, name: str, group: str, points: dict[str, str], module: str = "", code: str = ""
    ) -> None:
        info = self.folder / f"{name.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
        )
        if module:
            (self.folder / f"{module}.py").write_text(code)

    def answers(self, group: str, code: str) -> None:
        """One that runs this code."""
        self.add("acme-x", group, {"acme-x": "acme_x:answer"}, "acme_x", code)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Installed(tmp_path)
    for name in ("acme_x", *(module for module, _ in EXAMPLES.values())):
        sys.modules.pop(name, None)


def returning(answer: object) -> str:
    """The code of a module whose `answer` returns this object, which the test keeps."""
    sys.modules["acme_x_value"] = type("Kept", (), {"value": answer})  # type: ignore[assignment]
    return "import sys\ndef answer(*words):\n    return sys.modules['acme_x_value'].value\n"


def test_the_planners_own_are_found_without_any_distribution() -> None:
    assert all(method(name) is METHODS[name] for name in METHODS)
    assert schedule("breadth-first", SQUARE)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_example_is_found_listed_and_makes_a_plan_and_its_own_tests_pass(
    kind: str, tmp_path: Path, installed: Installed
) -> None:
    package, name = EXAMPLES[kind]
    (tmp_path / package).mkdir()
    example = ROOT / "examples" / f"third-party-{kind}"
    (tmp_path / package / "__init__.py").write_text((example / package / "__init__.py").read_text())
    group = TOPOLOGIES if kind == "topology" else SCHEDULES
    function = name.partition("-")[2]
    project = (example / "pyproject.toml").read_text()
    assert f'[project.entry-points."{group}"]\n{name} = "{package}:{function}"' in project
    installed.add(package.replace("_", "-"), group, {name: f"{package}:{function}"})
    settings = ["-p", "no:cacheprovider", "--rootdir", example, "-c", example / "pyproject.toml"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *settings, example],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"},
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    argv = [name] if kind == "topology" else ["direct", "--backend", "msccl", "--schedule", name]
    workload, inventory = ROOT / "examples/workloads/resnet50.yaml", ROOT / "inventory/emulated"
    methods = typed("design", "methods", "--json", at=tmp_path)
    made = typed("design", *argv, "-w", workload, "-i", inventory, "--json", at=tmp_path)
    listed, designed = (json.loads(done.stdout)["data"] for done in (methods, made))
    (found,) = [one for one in listed["topologies"] + listed["schedules"] if one["name"] == name]
    assert found == {
        "name": name,
        "distribution": f"{package.replace('_', '-')} 1.2",
        "object": f"{package}:{function}",
        "problem": "",
    }
    traffic = designed["plan"]["job"]["traffic"]["groups"]
    assert designed["plan"]["producer"]["method"] == argv[0] and ("schedule" in traffic[0]) == (
        kind == "schedule"
    )


def test_an_unknown_method_on_the_command_line_is_named(installed: Installed) -> None:
    done = typed("design", "acme-y", "-w", "x.yaml", at=ROOT)
    assert done.returncode == 2 and "No such command 'acme-y'" in done.stderr


def test_an_unknown_name_is_refused_with_the_nearest(installed: Installed) -> None:
    installed.answers(TOPOLOGIES, returning([GOOD]))
    with pytest.raises(
        BadFile,
        match=r"method: there is no 'acme-z'; did you mean acme-x\?; known: topoopt, .*acme-x",
    ):
        method("acme-z")
    with pytest.raises(
        BadFile, match="schedule: there is no 'breadth'; did you mean breadth-first"
    ):
        schedule("breadth", SQUARE)


def test_an_answer_is_taken_with_plain_values(installed: Installed) -> None:
    order = (np.int64(0), np.int64(2), np.int64(1), np.int64(3))
    installed.answers(
        TOPOLOGIES, returning([Found(Shape(4, 9, True, (Ring("all", order),)), "odd", ("why",))])
    )
    (found,) = method("acme-x")(DEMAND, LAB, Wanted("acme-x"))
    assert found == Found(Shape(4, 2, True, (Ring("all", (0, 2, 1, 3)),)), "odd", ("why",))
    assert all(type(rank) is int for rank in found.shape.rings[0].order)


def RINGS(*orders: tuple[int, ...]) -> Found:
    return Found(Shape(4, 2, True, tuple(Ring("all", order) for order in orders)), "x")


BAD_TOPOLOGIES: dict[str, tuple[object, str]] = {
    "nothing": (None, "returned NoneType, wanted topologies"),
    "text": ("ring", "returned str, wanted topologies"),
    "none at all": ([], "returned no topology"),
    "another kind": (
        [SQUARE],
        r"returned Shape among its topologies, wanted planner\.topology\.methods\.Found",
    ),
    "too many": ([GOOD] * (MOST_FOUND + 1), "more than 16 topologies"),
    "endless": (iter(lambda: GOOD, None), "more than 16 topologies"),
    "other ranks": (
        [Found(Shape(5, 2, True, (Ring("all", (0, 1, 2, 3, 4)),)), "x")],
        "x: 5 ranks and duplex links; wanted 4 ranks",
    ),
    "other links": (
        [Found(Shape(4, 2, False, SQUARE.rings), "x")],
        "4 ranks and simplex links; wanted 4 ranks and duplex",
    ),
    "a rank that is not": (
        [RINGS((0, 1, 2, 4))],
        r"x: \(0, 1, 2, 4\) is no order of at least two different ranks of 0 to 3",
    ),
    "a rank twice": ([RINGS((0, 1, 2, 1))], "is no order of at least two different ranks"),
    "one rank": ([RINGS((0,))], "is no order of at least two"),
    "an endless order": ([RINGS(range(10**9))], r"\(0, 1, 2, 3, 4\) is no order"),
    "too many links": (
        [RINGS((0, 1, 2, 3), (0, 2, 1, 3))],
        "x: rank 0 is on 4 links; each has 2 ports",
    ),
    "a fraction": ([RINGS((0, 1.5, 2, 3))], "a value of a wrong kind: 'float'"),
    "a pair of three": (
        [Found(Shape(4, 2, True, (), ((0, 1, 2),)), "x")],
        "a value of a wrong kind",
    ),  # type: ignore[arg-type]
    "packet switches": (
        [Found(SQUARE, "x", (), (("eth1", ("gpu01",)),))],
        "returned packet switches",
    ),
    "a name of two lines": ([Found(SQUARE, "a\nb")], "name and reasons must be printable lines"),
    "a name with a control": (
        [Found(SQUARE, "\x1b[2J")],
        "name and reasons must be printable lines",
    ),
    "a long story": (
        [Found(SQUARE, "x", ("y" * 401,))],
        "name and reasons must be printable lines",
    ),
    "no shape": ([Found(None, "x")], "a value of a wrong kind"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", BAD_TOPOLOGIES)
def test_an_answer_that_is_no_topology_of_this_lab_is_refused_by_name(
    case: str, installed: Installed
) -> None:
    answer, reported = BAD_TOPOLOGIES[case]
    installed.answers(TOPOLOGIES, returning(answer))
    with pytest.raises(BadPlugin, match=WHO + ".*" + reported) as caught:
        method("acme-x")(DEMAND, LAB, Wanted("acme-x"))
    assert caught.value.exit_code == 3 and "acme-x 1.2" in caught.value.hint


BAD_SENDS: dict[str, tuple[object, str]] = {
    "nothing": (None, "returned NoneType, wanted sends"),
    "another kind": ([(1, 0, 1, 0, 1.0)], "returned tuple among its sends"),
    "endless": (iter(lambda: Send(1, 0, 1, 0, 1.0), None), f"more than {MOST_SENDS} sends"),
    "no link": ([Send(1, 0, 2, 0, 1.0)], "wanted a link of the topology"),
    "no shard": ([Send(1, 0, 1, 9, 1.0)], "a shard of 0 to 3"),
    "step 0": ([Send(0, 0, 1, 0, 1.0)], "steps count from 1 to 4096"),
    "no part": ([Send(1, 0, 1, 0, 0.0)], "a part is above 0"),
    "no number": ([Send(1, 0, 1, 0, float("nan"))], "a part is above 0"),
    "text": ([Send("1", 0, 1, 0, 1.0)], "a value of a wrong kind"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", BAD_SENDS)
def test_an_answer_that_is_no_schedule_is_refused_by_name(case: str, installed: Installed) -> None:
    answer, reported = BAD_SENDS[case]
    installed.answers(SCHEDULES, returning(answer))
    with pytest.raises(BadPlugin, match=WHO + ".*" + reported):
        schedule("acme-x", SQUARE)


FAULTY = {
    "import os.path.nowhere": "cannot be imported: ModuleNotFoundError",
    "raise SystemExit(3)": "cannot be imported: SystemExit: 3",
    "answer = 3": "is int, which cannot be called",
    "other = 3": "cannot be imported: AttributeError",
    "def answer(*words): raise KeyError('x')": "failed: KeyError: 'x'",
    "def answer(*words): raise SystemExit": "failed: SystemExit",
    "def answer(): pass": "failed: TypeError: answer.. takes 0 positional arguments",
    "def answer(*words):\n    yield\n    raise KeyError('y')": "failed: KeyError: 'y'",
}


@pytest.mark.parametrize("code", FAULTY)
def test_a_fault_of_the_object_is_reported_with_its_distribution(
    code: str, installed: Installed
) -> None:
    installed.answers(TOPOLOGIES, code)
    with pytest.raises(BadPlugin, match=WHO + FAULTY[code]):
        method("acme-x")(DEMAND, LAB, Wanted("acme-x"))


def test_a_refusal_in_the_planners_words_is_passed_on(installed: Installed) -> None:
    code = "from planner.model.demand import Infeasible\ndef answer(*words): raise Infeasible('three ports', 'take four')"
    installed.answers(TOPOLOGIES, code)
    with pytest.raises(Infeasible, match="three ports"):
        method("acme-x")(DEMAND, LAB, Wanted("acme-x"))


def test_names_that_cannot_be_used_are_listed_with_the_reason(installed: Installed) -> None:
    installed.add(
        "one", TOPOLOGIES, {"ring": "one:ring", "Bad Name": "one:bad", "twin": "one:twin"}
    )
    installed.add("two", TOPOLOGIES, {"twin": "two:twin"})
    found = {one.name: one.problem for one in plugins(TOPOLOGIES)}
    assert found == {
        "ring": "its name is that of one of testbed's own",
        "Bad Name": "its name must be of a-z, 0-9 and -, at most 40 characters, and begin with a letter",
        "twin": "2 distributions provide this name; uninstall all but one",
    }
    assert method("ring") is METHODS["ring"]
    with pytest.raises(BadPlugin, match="2 distributions provide this name"):
        method("twin")(DEMAND, LAB, Wanted("twin"))


def test_an_incomplete_schedule_is_caught_by_the_reader_of_plans_and_named(
    installed: Installed, tmp_path: Path
) -> None:
    once = "[Send(1, a, b, a, 1.0) for a, b in dict.fromkeys(shape.links)]"
    code = f"from planner.schedule.bfb import Send\ndef answer(shape):\n    return {once}"
    installed.answers(SCHEDULES, code)
    from optical_testbed import Lab as Opened

    places = {f"{name}_dir": str(tmp_path / name) for name in ("data", "state", "lock")}
    workload = {
        "schema": "testbed.workload/1", "name": "w", "ranks": 6, "compute_s": 0.01,
        "collectives": [{"id": "all", "ranks": "all", "bytes": 1000000}],
    }  # fmt: skip
    lab = Opened.open(ROOT / "inventory" / "emulated", settings=places)
    with pytest.raises(
        BadPlugin, match=WHO + r"no plan can be made of its answer: .*pieces never received"
    ):
        lab.design(workload, "ring", backend="msccl", schedule="acme-x")
