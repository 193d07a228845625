"""Files and versions of the installation: `testbed examples` and `testbed --version`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, cast

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.groups import Listed, family
from orchestrator.cli.pages import examples_home

SCENARIO = "scenario.yaml"
_KINDS = (".json", ".py", ".yaml", ".yml", ".md", ".svg", ".toml", ".ipynb", ".txt")


def _shipped() -> dict[Path, Path]:
    """Examples, inventories and extensions' scenarios: each file's path in the repository, and
    where it is. Raises: Missing.
    """
    import optical_testbed_home

    of_packages = (
        (optical_testbed_home.HOME, "extensions/*/scenarios/**/*"),
        (optical_testbed_home.HOME, "inventory/*/*"),
    )
    trees = ((examples_home(), "examples/**/*"), *of_packages)
    found = (
        (path.relative_to(home), path)
        for home, pattern in trees
        for path in home.glob(pattern)
        if path.is_file()
    )
    return {
        name: path
        for name, path in sorted(found)
        if "__pycache__" not in name.parts and name.suffix in _KINDS
    }


def scenarios() -> dict[str, Path]:
    """The scenario files that come with the program, by name. Raises: Missing - the examples are
    not installed.
    """
    found = [path for path in _shipped().values() if path.name == SCENARIO]
    return {path.parent.name: path for path in sorted(found, key=lambda path: path.parent.name)}


def _copy(files: Mapping[Path, Path], to: Path) -> None:
    """Copy files, by their paths below it, into an empty or new directory. Raises: Usage - there is
    something.
    """
    import shutil

    try:
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise Usage(
                f"{to}: exists and is not an empty directory",
                hint="choose another one; nothing was written",
            )
        for name, path in files.items():
            target = to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    except OSError as error:
        raise Usage(
            f"{to}: {error.strerror}", hint="choose another directory: testbed examples copy DIR"
        ) from error


app = family("examples", Listed)


class Schema(StrEnum):
    """Formats that have a JSON Schema; `data`: what `--json` prints."""

    plan = "plan"
    scenario = "scenario"
    sweep = "sweep"
    data = "data"


@verb(
    app,
    "list",
    "List the installed examples.",
    examples="testbed examples list",
    more="Plans and workloads for the default lab, scenarios and campaigns of `testbed experiment`, a driver.",
)
def list_(call: Call) -> Result:
    from orchestrator.cli.examplelist import example_list

    data, text = example_list(examples_home())
    return Result(data, text, hint="testbed examples copy DIR")


@verb(
    app,
    "copy",
    "Copy the examples into a new or empty directory.",
    examples="testbed examples copy trial\ncd trial && testbed up --topology examples/ring-12.json",
)
def copy(
    call: Call, to: Annotated[Path, typer.Argument(metavar="DIR", help="The directory.")]
) -> Result:
    shipped = _shipped()
    _copy(shipped, to)
    files = [str(name) for name in shipped]
    hint = f"cd {to} && testbed up --topology examples/topoopt-12.json"
    return Result(
        {"folder": str(to), "files": [*files]}, f"Copied {len(files)} files to {to}", hint=hint
    )


@verb(
    app,
    "schema",
    "Print the JSON Schema of a file format, or of what --json prints.",
    examples="testbed examples schema plan > plan.schema.json\ntestbed examples schema scenario > scenario.schema.json\n"
    "testbed examples schema data > data.schema.json\ntestbed examples schema data job status      of the data of one verb",
)
def schema(
    call: Call,
    what: Annotated[Schema, typer.Argument(help="The file format, or data.")] = Schema.plan,
    verb: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VERB]", help="Of data: a verb, such as job status."),
    ] = None,
) -> Result:
    from orchestrator.experiments.files.scenario.edges import scenario_schema
    from orchestrator.experiments.files.sweep.edges import sweep_schema
    from orchestrator.plan.edges import plan_schema
    from orchestrator.results import Json

    if what is Schema.data:
        found = cast(dict[str, Json], _data_schema(call, " ".join(verb or ())))
    elif verb:
        raise Usage(
            f"examples schema: {what.value} has no schema of a verb",
            hint="testbed examples schema data status",
        )
    else:
        of_file = {
            Schema.plan: plan_schema,
            Schema.scenario: scenario_schema,
            Schema.sweep: sweep_schema,
        }
        found = cast(dict[str, Json], of_file[what]())
    return Result(found, json.dumps(found, indent=2, ensure_ascii=False), verbatim=True)


def _data_schema(call: Call, verb: str) -> dict[str, object]:
    """Raises: Usage - no verb has this name."""
    from optics.plain import did_you_mean
    from orchestrator.cli.dataschema import json_schema, schema_of
    from orchestrator.cli.shapes import data

    whole = json_schema()
    if verb and verb not in (known := data()):
        raise Usage(
            f"examples schema: there is no verb {verb}{did_you_mean(verb, known)}",
            hint="testbed examples schema data: those of all verbs",
        )
    return schema_of(verb, whole) if verb else whole


def versions() -> Result:
    """What `testbed --version` prints."""
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
