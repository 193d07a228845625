"""Files and versions of the installation: `testbed examples`, `schema` and `version`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast

import typer

from optics.errors import TestbedError
from orchestrator.cli.call import Call, Result, Usage, verb

SCENARIO = "scenario.yaml"
_KINDS = (".json", ".py", ".yaml", ".yml", ".md", ".svg", ".toml", ".ipynb", ".txt")


def examples_home() -> Path:
    """The directory with `examples`. Raises: Missing."""
    from importlib.metadata import PackageNotFoundError, files

    import optical_testbed_home
    from optics.errors import Missing

    if (optical_testbed_home.HOME / "examples" / "topoopt-12.json").is_file():  # run from its repository
        return optical_testbed_home.HOME
    try:
        installed = files("optical-testbed") or []
    except PackageNotFoundError:
        installed = []
    for file in installed:
        if file.parts[-2:] == ("examples", "topoopt-12.json"):
            return Path(str(file.locate())).resolve().parents[1]
    raise Missing("the examples are not installed", hint="pip install --force-reinstall --no-deps optical-testbed")


def _shipped() -> dict[Path, Path]:
    """Examples, inventories and extensions' scenarios: each file's path in the repository, and where it is. Raises: Missing."""
    import optical_testbed_home

    of_packages = (optical_testbed_home.HOME, "extensions/*/scenarios/**/*"), (optical_testbed_home.HOME, "inventory/*/*")
    trees = ((examples_home(), "examples/**/*"), *of_packages)
    found = ((path.relative_to(home), path) for home, pattern in trees for path in home.glob(pattern) if path.is_file())
    return {name: path for name, path in sorted(found) if "__pycache__" not in name.parts and name.suffix in _KINDS}


def scenarios() -> dict[str, Path]:
    """The scenario files that come with the program, by name. Raises: Missing - the examples are not installed."""
    found = [path for path in _shipped().values() if path.name == SCENARIO]
    return {path.parent.name: path for path in sorted(found, key=lambda path: path.parent.name)}


def with_pages(text: str) -> str:
    """The text; a page of the documentation that is not below this directory is named by where it is installed."""
    if ".md" not in text:
        return text
    from contextlib import suppress

    import optical_testbed_home

    def place(page: re.Match[str]) -> str:
        there = (optical_testbed_home.HOME if page[0].startswith("extensions/") else home) / page[0]
        return page[0] if Path(page[0]).is_file() or not there.parent.is_dir() else str(there)

    with suppress(TestbedError):
        home = examples_home()
        return re.sub(r"(?<![\w/])(?:docs/[\w/.-]+|extensions/\w+/README)\.md", place, text)
    return text


def _copy(files: Mapping[Path, Path], to: Path) -> None:
    """Copy files, by their paths below it, into an empty or new directory. Raises: Usage - there is something."""
    import shutil

    try:
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise Usage(f"{to}: exists and is not an empty directory", hint="choose another one; nothing was written")
        for name, path in files.items():
            target = to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    except OSError as error:
        raise Usage(f"{to}: {error.strerror}", hint="choose another directory: testbed examples --copy DIR") from error


app = typer.Typer()


class Schema(StrEnum):
    """Formats that have a JSON Schema; `data`: what `--json` prints."""

    plan = "plan"
    scenario = "scenario"
    sweep = "sweep"
    data = "data"


@verb(
    app,
    "examples",
    "List the installed examples, or copy them into a directory.",
    examples="testbed examples\ntestbed examples --copy trial\ncd trial && testbed up --topology examples/ring-12.json",
    more="Plans and workloads for the default lab, scenarios (`testbed reproduce`), campaigns (`testbed sweep`), a driver.",
)
def examples(
    call: Call,
    copy: Annotated[Path | None, typer.Option("--copy", metavar="DIR", help="Copy them into this new or empty directory.")] = None,
) -> Result:
    from orchestrator.cli.examplelist import example_list

    if copy is not None:
        shipped = _shipped()
        _copy(shipped, copy)
        files = [str(name) for name in shipped]
        hint = f"cd {copy} && testbed up --topology examples/topoopt-12.json"
        return Result({"folder": str(copy), "files": [*files]}, f"Copied {len(files)} files to {copy}", hint=hint)
    data, text = example_list(examples_home())
    return Result(data, text, hint="testbed examples --copy DIR")


@verb(
    app,
    "schema",
    "Print the JSON Schema of a file format, or of what --json prints.",
    examples="testbed schema plan > plan.schema.json\ntestbed schema scenario > scenario.schema.json\n"
    "testbed schema data > data.schema.json\ntestbed schema data job status      of the data of one verb",
)
def schema(
    call: Call,
    what: Annotated[Schema, typer.Argument(help="The file format, or data.")] = Schema.plan,
    verb: Annotated[list[str] | None, typer.Argument(metavar="[VERB]", help="Of data: a verb, such as job status.")] = None,
) -> Result:
    from orchestrator.experiments.files.scenario.edges import scenario_schema
    from orchestrator.experiments.files.sweep.edges import sweep_schema
    from orchestrator.plan.edges import plan_schema
    from orchestrator.results import Json

    if what is Schema.data:
        found = cast(dict[str, Json], _data_schema(call, " ".join(verb or ())))
    elif verb:
        raise Usage(f"schema: {what.value} has no schema of a verb", hint="testbed schema data status")
    else:
        of_file = {Schema.plan: plan_schema, Schema.scenario: scenario_schema, Schema.sweep: sweep_schema}
        found = cast(dict[str, Json], of_file[what]())
    return Result(found, json.dumps(found, indent=2, ensure_ascii=False), verbatim=True)


def _data_schema(call: Call, verb: str) -> dict[str, object]:
    """Raises: Usage - no verb has this name."""
    from optics.plain import did_you_mean
    from orchestrator.cli.dataschema import json_schema, schema_of
    from orchestrator.cli.shapes import data

    whole = json_schema()
    if verb and verb not in (known := data()):
        raise Usage(f"schema: there is no verb {verb}{did_you_mean(verb, known)}", hint="testbed schema data: those of all verbs")
    return schema_of(verb, whole) if verb else whole


@verb(app, "version", "Print the versions of testbed and its dependencies.", examples="testbed version --json")
def version(call: Call) -> Result:
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    names = ("optical-testbed", "ansible-core", "paramiko", "typer", "pydantic", "torch")
    found = {}
    for name in names:
        try:
            found[name] = installed(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    found |= {"python": platform.python_version(), "kernel": platform.release()}
    own = found.pop("optical-testbed")
    rest = ", ".join(f"{k} {v}" for k, v in found.items())
    return Result({"testbed": own, **found}, f"testbed {own}\n{rest}")
