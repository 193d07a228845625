"""The pages agree with the code: keys, fields, options, faults, exit codes; links lead somewhere;
plans and examples work.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import jsonschema
import pytest
from pydantic import BaseModel

from conformance.present import evidence_table, options_table, replaced, traits_table
from drivers.registry import _BUILT_IN, built_in_drivers, evidence
from emulators.devices.families import WHERE, family
from emulators.devices.family import PLANT_KEYS
from emulators.devices.faults import NAMES, Fault
from emulators.inventory.config import read_config
from emulators.inventory.lines import LINE_KEYS
from emulators.lab.control import Control
from emulators.lab.hostfaults import HOST_FAULTS, HostFault
from emulators.lab.running import Lab, Listeners, build_devices
from optics import TestbedError, errors
from orchestrator.cli.main import EXIT_CODES
from orchestrator.inventory.edges import (
    BmcEdge,
    DeviceEdge,
    DevicesEdge,
    FibreEdge,
    FibresEdge,
    HostEdge,
    PortEdge,
    QueueEdge,
    RackEdge,
    SegmentEdge,
    SlotEdge,
    SshEdge,
    TraitsEdge,
    TrunkEdge,
    TrunkEndEdge,
)
from orchestrator.inventory.lab import read_lab
from orchestrator.inventory.partitions import PartitionEdge
from orchestrator.inventory.programs import (
    ArgumentEdge,
    CheckpointEdge,
    IterationsEdge,
    ProgramEdge,
    ProgramsEdge,
)
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.plan import edges as planedges
from orchestrator.plan.edges import (
    AcceptanceEdge,
    GroupEdge,
    JobEdge,
    LinkEdge,
    PlanEdge,
    PredictedEdge,
    ProducerEdge,
    RouteEdge,
    SendEdge,
    TrafficEdge,
    TransferEdge,
    TransitionEdge,
    plan_schema,
)
from orchestrator.plan.job_env import ALLOWED
from orchestrator.plan.reader import read_plan
from tests.house.repository import ROOT, blocks, nodes, pages
from workloads.programs.options import OPTIONS

DOCS = ROOT / "docs"
PARTS = ("hosts.yml", "devices.yml", "fibres.yml")
MECHANISMS = {path.parent.name: path for path in sorted((ROOT / "extensions").glob("*/README.md"))}


def page(name: str) -> str:
    return (DOCS / name).read_text()


def section(text: str, heading: str) -> str:
    found = re.search(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    assert found, f"no section {heading}"
    return found[1]


def rows(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """The rows of all tables: the names in the first cell, and the other cells."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("| `"):
            yield re.findall(r"`([^`]+)`", cells[0]), cells[1:]


def names(text: str) -> set[str]:
    return {name for found, _ in rows(text) for name in found}


def fields(*models: type[BaseModel], prefix: str = "") -> set[str]:
    return {
        prefix + (field.alias or name)
        for model in models
        for name, field in model.model_fields.items()
    }


# inventory and plan


def test_the_inventory_page_lists_exactly_the_keys_of_each_file() -> None:
    text = page("reference/inventory.md")
    assert names(section(text, "hosts.yml")) == fields(HostEdge, prefix="testbed_") | fields(
        PortEdge, SshEdge, PartitionEdge, BmcEdge
    )
    assert names(section(text, "devices.yml")) == fields(DevicesEdge, DeviceEdge, TraitsEdge)
    segments = fields(RackEdge, SegmentEdge, QueueEdge)
    assert (
        names(section(text, "fibres.yml"))
        == fields(FibresEdge, FibreEdge, SlotEdge, TrunkEdge, TrunkEndEdge) | segments
    )
    programs = fields(ProgramsEdge, ProgramEdge, ArgumentEdge, IterationsEdge, CheckpointEdge)
    assert names(section(text, "programs.yml")) == programs
    own = {
        key for driver in WHERE for key in inspect.signature(family(driver).dialect).parameters
    } - {"plant"}
    settings = {
        "hosts",
        "seed",
        "link_rate_mbps",
        "mtu",
        "reserve_core",
        "devices",
        "lines",
        "dilation",
        "rdma",
    } | LINE_KEYS
    assert names(section(text, "emulator.yml")) == own | PLANT_KEYS | settings


def test_every_key_of_emulator_yml_that_the_page_lists_is_taken(tmp_path: Path) -> None:
    for part in (*PARTS, "emulator.yml"):
        (tmp_path / part).write_text((ROOT / "inventory" / "emulated" / part).read_text())
    (tmp_path / "emulator.yml").write_text(
        "hosts: false\nseed: 2\nlink_rate_mbps: 0\nmtu: 1500\nreserve_core: false\ndevices: {}\nlines: []\n"
    )
    assert read_config(tmp_path).rate_bps == 0
    (tmp_path / "emulator.yml").write_text("sead: 2\n")
    with pytest.raises(ValueError, match="sead: unknown setting"):
        read_config(tmp_path)


PLAN_PARTS: Mapping[str, type[BaseModel]] = {
    "The plan": PlanEdge,
    "Links": LinkEdge,
    "Segments": planedges.PlanSegmentEdge,
    "Job": JobEdge,
    "Traffic": TrafficEdge,
    "Groups": GroupEdge,
    "Sends": SendEdge,
    "Transfers": TransferEdge,
    "Predicted": PredictedEdge,
    "Producer": ProducerEdge,
    "Routes": RouteEdge,
    "Acceptance": AcceptanceEdge,
    "Transition": TransitionEdge,
}


@pytest.mark.parametrize("heading", PLAN_PARTS)
def test_the_plan_page_lists_the_fields_of_each_part_with_their_defaults(heading: str) -> None:
    model, found = PLAN_PARTS[heading], section(page("reference/plan.md"), heading)
    assert names(found) == fields(model)
    for listed, (_, default, _) in rows(found):
        for name, field in model.model_fields.items():
            if (field.alias or name) not in listed or isinstance(field.default, BaseModel):
                continue
            value = field.default_factory() if field.default_factory else field.default  # type: ignore[call-arg]
            assert default == ("required" if field.is_required() else f"`{json.dumps(value)}`"), (
                name
            )


def short(wanted: str) -> str:
    """What a value must be, as a table has it."""
    for words, fewer in (
        ("a size such as 65536, 64K or 1G from ", "a size, "),
        ("a whole number from ", "whole, "),
        ("a number from ", ""),
        ("a number above ", "above "),
    ):
        wanted = wanted.replace(words, fewer)
    return re.sub(r"^(whole, |a size, )?(\d+) to (\d+)", r"\1\2..\3", wanted)


def test_the_plan_page_lists_the_options_of_the_workloads() -> None:
    output = section(page("reference/plan.md"), "Arguments of a job")
    for workload, options in OPTIONS.items():
        table = output.partition(f"| `{workload}` |")[2].partition("\n\n")[0]
        listed = {names[0]: cells for names, cells in rows(table)}
        assert set(listed) == {option.name for option in options}, workload
        for option in options:
            wanted, default, means = listed[option.name]
            assert wanted == short(option.wanted), option.name
            assert default == (
                "none" if option.default is None else f"`{json.dumps(option.default)}`"
            ), option.name
            assert means == option.help, option.name


def test_the_plan_page_lists_the_variables_a_plan_may_set_with_their_values() -> None:
    listed = {
        name: cells[0]
        for found, cells in rows(section(page("reference/plan.md"), "Environment of a job"))
        for name in found
    }
    assert listed == {name: words for name, (words, _) in ALLOWED.items()}


def test_the_committed_schema_is_the_one_the_program_uses() -> None:
    committed = (DOCS / "reference" / "plan.schema.json").read_text()
    assert json.loads(committed) == plan_schema(), (
        "write it again: testbed examples schema plan > docs/reference/plan.schema.json"
    )


PLANS = {
    f"{block}": block.text
    for at in pages()
    for block in blocks(at)
    if block.language == "json" and "testbed.plan/1" in block.text
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_is_shown_fits_the_schema_and_the_default_lab(name: str) -> None:
    parts = [ROOT / "inventory" / "emulated" / part for part in PARTS]
    lab = read_lab(
        *(path.read_text() for path in (*parts, ROOT / "inventory" / "emulated" / "programs.yml"))
    )
    jsonschema.validate(json.loads(PLANS[name]), json.loads(page("reference/plan.schema.json")))
    assert not read_plan(PLANS[name], name, lab).warnings


def test_every_block_of_yaml_toml_and_json_parses() -> None:
    readers = {"yaml": lambda text: read_yaml(text, "a page"), "toml": tomllib.loads}
    for block in (block for at in pages() for block in blocks(at)):
        if block.language in readers:
            readers[block.language](block.text)
        elif block.language == "python":
            compile(block.text, str(block), "exec")
        elif block.language == "json":
            lines = block.text.splitlines() if block.text.startswith('{"op"') else [block.text]
            assert all(isinstance(json.loads(line), dict) for line in lines), str(block)


# drivers


def test_the_tables_of_the_drivers_page_are_those_that_the_code_gives() -> None:
    text, own = page("reference/drivers.md"), built_in_drivers()
    tables = {
        "evidence": evidence_table(own),
        "traits": traits_table(own),
        "options": options_table(own),
    }
    assert replaced(text, tables) == text, (
        "write them again: testbed devices driver list --update docs/reference/drivers.md"
    )
    assert set(own) == set(_BUILT_IN) and all(
        f"| `{driver}` |" in tables["evidence"] for driver in own
    )


def test_the_support_matrix_has_a_row_for_every_driver() -> None:
    (matrix,) = re.findall(
        r"<!-- matrix: .*?-->(.*?)<!-- end matrix -->", page("reference/drivers.md"), re.DOTALL
    )
    assert re.findall(r"^\| `([^`]+)` \|", matrix, re.MULTILINE) == sorted(built_in_drivers())


def test_every_driver_says_what_it_stands_on() -> None:
    silent = [
        driver
        for driver in built_in_drivers()
        if not {"identify", "read", "change"} <= evidence(driver).grades.keys()
    ]
    assert not silent


def test_every_transcript_states_its_source_and_one_of_the_grades_of_the_pages() -> None:
    grades = {"REAL", "DOC", "CODE", "constructed"}
    assert all(grade in page("how-to/add-a-driver.md") for grade in grades)
    found = [*(ROOT / "tests").rglob("transcripts/*.txt")]
    assert found
    for path in found:
        head = path.read_text()
        assert re.search(r"^# source: \S", head, re.MULTILINE), path
        assert (
            set(re.findall(r"^# grade: (\S+)", head, re.MULTILINE)) <= grades
            and "# grade: " in head
        ), path


@pytest.mark.long
def test_the_page_on_adding_a_device_can_be_followed_to_the_letter(tmp_path: Path) -> None:
    emulated, driver = (
        b.text for b in blocks(DOCS / "how-to" / "add-a-driver.md") if b.language == "python"
    )
    package = tmp_path / "acme-line"

    def testbed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "orchestrator.cli.main", *words],
            env={**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{ROOT}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )

    assert "$ testbed devices driver new acme-line --protocol scpi" in page(
        "how-to/add-a-driver.md"
    )
    assert testbed("devices", "driver", "new", "acme-line", "--protocol", "scpi").returncode == 0
    installed = package / "acme_line_testbed-0.1.0.dist-info"  # what pip would leave
    installed.mkdir()
    (installed / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme-line-testbed\nVersion: 0.1.0\n"
    )
    points = tomllib.loads((package / "pyproject.toml").read_text())["project"]["entry-points"]
    (installed / "entry_points.txt").write_text(
        "\n".join(
            f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in found.items())
            for group, found in points.items()
        )
    )
    assert testbed("devices", "driver", "conform", "acme-line").returncode == 7  # as scaffolded
    (package / "acme_line_testbed" / "emulated.py").write_text(emulated)
    (package / "acme_line_testbed" / "driver.py").write_text(driver)
    checked = testbed("devices", "driver", "conform", "acme-line")
    assert checked.returncode == 0, checked.stdout[-3000:] + checked.stderr[-1000:]
    assert "all 13" in checked.stdout


# the emulated lab


@asynccontextmanager
async def control() -> AsyncIterator[Control]:
    """The control socket's answers, of the default lab without hosts, its devices on free ports."""
    config = read_config(ROOT / "inventory" / "emulated")
    devices = build_devices(config)
    listeners = Listeners(dict.fromkeys(devices), {}, None, None, 1)  # type: ignore[arg-type]
    lab = Lab(config, devices, listeners, None)
    for server in lab.servers.values():
        await server.start()
    try:
        yield Control(lab)
    finally:
        for server in lab.servers.values():
            await server.stop()


REQUESTS = [
    line
    for b in blocks(DOCS / "how-to" / "inject-faults.md")
    if b.language == "json"
    for line in b.text.splitlines()
    if line
]


async def test_every_request_of_the_page_on_faults_is_understood() -> None:
    async with control() as lab:
        for line in REQUESTS:
            answer = lab.answer(line.encode())
            missing = (
                "this lab has no hosts, so no fibres",
                "no running host gpu05",
                "queue.share: no segment here has racks and a ",
            )
            known = answer["ok"] or answer["error"].startswith(missing)
            assert known, f"{line}: {answer}"


async def test_the_page_on_faults_names_every_operation_every_fault_and_every_field() -> None:
    async with control() as lab:
        assert {json.loads(line)["op"] for line in REQUESTS} == set(lab._operations)
    listed = names(section(page("how-to/inject-faults.md"), "Make a device misbehave"))
    assert listed == set(NAMES) | {field.name for field in dataclasses.fields(Fault)} - {"kind"}
    listed = names(section(page("how-to/inject-faults.md"), "Make a host or a link fail"))
    assert listed == set(HOST_FAULTS) | {field.name for field in dataclasses.fields(HostFault)} - {
        "kind"
    }


def test_the_command_line_takes_every_field_of_a_fault() -> None:
    source = (ROOT / "orchestrator" / "cli" / "faults.py").read_text()
    given = re.search(r"given = \{(.*?)\}", source, re.DOTALL)
    fields = {field.name for kind in (Fault, HostFault) for field in dataclasses.fields(kind)} - {
        "kind"
    }
    assert given and set(re.findall(r'"(\w+)":', given[1])) == fields


# errors


CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, TestbedError)]


def test_the_exit_codes_are_those_promised_and_every_error_has_one() -> None:
    assert set(EXIT_CODES) == {*range(10), 130}
    assert {c.exit_code for c in CLASSES} <= set(EXIT_CODES)


def test_the_cli_page_lists_every_exit_code_and_the_page_on_failures_every_error() -> None:
    cli = section(page("reference/cli.md"), "Exit codes")
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", cli, re.MULTILINE)} == set(EXIT_CODES)
    table = re.findall(
        r"^\| (\d+) \| ([^|]*) \|", page("how-to/when-something-fails.md"), re.MULTILINE
    )
    listed = {
        code: int(number) for number, cell in table for code in re.findall(r"`(E-[A-Z-]+)`", cell)
    }
    assert {c.code: c.exit_code for c in CLASSES}.items() <= listed.items()
    cli_source = "".join(path.read_text() for path in (ROOT / "orchestrator" / "cli").glob("*.py"))
    assert set(re.findall(r'"(E-[A-Z-]+)"', cli_source)) <= set(listed)
    for number in (3, 4, 5, 7, 9):
        assert re.search(rf"^## {number}: ", page("how-to/when-something-fails.md"), re.MULTILINE)


# links


def anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_link_of_a_page_leads_somewhere() -> None:
    dead = []
    for at in pages():
        text = re.sub(r"```.*?```", "", at.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            other = (at.parent / file).resolve() if file else at
            if not other.exists() or (anchor and anchor not in anchors(other)):
                dead.append(f"{at.relative_to(ROOT)}: {target}")
    assert not dead


def test_every_page_that_the_program_names_is_there_and_is_installed_with_it() -> None:
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    installed = {
        path
        for to, globs in setuptools["data-files"].items()
        for pattern in globs
        for path in ROOT.glob(pattern)
        if to.endswith(str(path.parent.relative_to(ROOT)))
    }
    installed |= {
        path
        for pattern in setuptools["package-data"]["extensions"]
        for path in (ROOT / "extensions").glob(pattern)
    }
    rooms = (
        "orchestrator",
        "optics",
        "drivers",
        "planner",
        "emulators",
        "conformance",
        "optical_testbed",
        "extensions",
    )
    named = {
        page
        for room in rooms
        for source in (ROOT / room).rglob("*.py")
        for page in re.findall(r"docs/[\w/.-]+\.md|extensions/\w+/README\.md", source.read_text())
        if "/decisions/" not in page
    }
    assert len(named) > 10
    assert [page for page in sorted(named) if ROOT / page not in installed] == []


def test_the_index_leads_to_every_page_of_the_documentation() -> None:
    index = set(re.findall(r"\]\(([^)#\s]+)\)", page("README.md")))
    wanted = {
        str(p.relative_to(DOCS))
        for p in pages()
        if p.is_relative_to(DOCS) and p.name != "README.md"
    }
    wanted |= {f"../extensions/{name}/README.md" for name in MECHANISMS}
    assert {p for p in wanted if not p.startswith("decisions/")} <= index


# pages that the program names


def named_pages(folder: Path) -> Iterator[tuple[str, str]]:
    """The pages in the texts of a folder's modules, without their docstrings and remarks, with
    their places.
    """
    for file in sorted(folder.rglob("*.py")):
        found = nodes(file)
        notices = {id(node.value) for node in found if isinstance(node, ast.Expr)}
        for node in found:
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in notices
            ):
                for name in re.findall(r"(?:docs|extensions)/[\w/.-]+\.md", node.value):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", name


def test_a_page_that_the_program_names_is_part_of_an_installation() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    existing = {
        str(path.relative_to(ROOT))
        for kept in built["data-files"].values()
        for one in kept
        for path in ROOT.glob(one)
    }
    existing |= {
        str(path.relative_to(ROOT))
        for one in built["package-data"]["extensions"]
        for path in (ROOT / "extensions").glob(one)
    }
    named = [
        found
        for room in ("optics", "drivers", "planner", "orchestrator", "extensions")
        for found in named_pages(ROOT / room)
    ]
    assert len(named) > 20
    assert not [f"{at}: {name}" for at, name in named if name not in existing]
