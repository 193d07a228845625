"""`testbed schema` and `testbed version`."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, cast

import typer

from orchestrator.cli.call import Call, Result, verb


class Schema(StrEnum):
    plan = "plan"


def register(root: typer.Typer) -> None:
    @verb(
        root,
        "schema",
        "Print the JSON Schema of a file, for editors and checks.",
        examples="testbed schema plan > plan.schema.json",
    )
    def schema(call: Call, what: Annotated[Schema, typer.Argument(help="Which file.")] = Schema.plan) -> Result:
        from orchestrator.plan.edges import json_schema
        from orchestrator.results import Json

        found = cast(dict[str, Json], json_schema())
        return Result(found, json.dumps(found, indent=2, ensure_ascii=False), verbatim=True)

    @verb(root, "version", "Print the versions of testbed and of what it stands on.", examples="testbed version --json")
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
