"""The published schemas of what `--json` prints: all verbs, the types of the code, and what
commands print.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from typer.main import get_command

from orchestrator.cli import shapes
from orchestrator.cli.dataschema import key
from orchestrator.cli.main import app
from tests.house.repository import ROOT
from tests.house.test_commands import leaves
from tests.jsondata import PAGE, fits, published, verb_of

AT = ("--inventory", ROOT / "inventory" / "emulated")


def test_the_published_schema_is_the_one_of_the_code(cli: Any) -> None:
    assert cli("examples", "schema", "data").out == PAGE.read_text(), (
        "write it again: testbed examples schema data > docs/reference/data.schema.json"
    )
    jsonschema.Draft202012Validator.check_schema(published())


def test_every_verb_has_a_schema_and_every_schema_a_verb() -> None:
    assert {" ".join(path) for path, _ in leaves(get_command(app()))} | {"version"} == set(
        shapes.data()
    )
    assert {key(verb) for verb in shapes.data()} <= set(published()["$defs"])


def test_every_part_that_the_schema_refers_to_is_there() -> None:
    text = json.dumps(published())
    assert {part.partition('"')[0] for part in text.split('"#/$defs/')[1:]} <= set(
        published()["$defs"]
    )


def test_the_schema_of_one_verb_stands_alone(cli: Any) -> None:
    alone = json.loads(cli("examples", "schema", "data", "job", "status").out)
    assert "JobStatus" in alone["$ref"] and set(alone["$defs"]) == {"JobStatus"}
    jsonschema.validate(cli("job", "status", "--json").json["data"], alone)
    assert cli("examples", "schema", "data", "job", "statsu").err.startswith(
        "E-USAGE examples schema: there is no verb job statsu; did you mean job status?"
    )
    assert cli("examples", "schema", "plan", "status").code == 2


PRINTED = (
    *(
        ("up", "-t", "plan.json"),
        ("plan", "-t", "plan.json"),
        ("down", "--yes"),
        ("rollback",),
        ("resume", "last"),
        ("confirm",),
    ),
    *(
        ("restore",),
        ("status",),
        ("verify",),
        ("verify", "--stall", "--history"),
        ("devices",),
        ("devices", "power"),
    ),
    *(("job", word) for word in ("launch", "status", "logs", "env", "pause", "resume", "stop")),
    *(
        ("run", "list"),
        ("lock", *AT),
        ("lock", "audit", *AT),
        ("tagout", *AT),
        ("job", "queue", *AT),
        ("devices", "driver", "list"),
        ("design", "methods"),
    ),
    *(
        ("design", "cost"),
        ("examples",),
        ("--version",),
        ("examples", "schema"),
        ("lab", "status", *AT),
        ("telemetry", "status"),
        ("experiment", "reproduce", "--list"),
    ),
    *(
        ("design", "slices", "--slice", "2x4", *AT),
        ("doctor",),
        ("watch", "--once", "--passive", *AT),
    ),
    *(
        ("design", m, "-w", ROOT / "examples/workloads/dlrm.yaml", "--iterations", "0", *AT)
        for m in ("ring", "torus")
    ),
    ("design", "export", *AT, ROOT / "examples" / "ring-12.json", "--containerlab", "x.clab.yml"),
    ("design", "import", *AT, ROOT / "tests" / "fuzz" / "corpus" / "graphml" / "plain"),
    ("lock", "reserve", "--for", "2h", "--reason", "x", "--hosts", "gpu01", *AT),
    *(
        ("tagout", "gpu03", "--reason", "x", *AT),
        ("examples", "copy", "ex"),
        ("service", "stop", "queue", *AT),
        ("service", "status", *AT),
    ),
    ("up", "-t", "absent.json"),
)


@pytest.mark.parametrize("argv", PRINTED, ids=lambda argv: " ".join(map(str, argv[:2])))
def test_what_a_command_prints_fits_the_published_schema(
    cli: Any, argv: tuple[object, ...]
) -> None:
    reply = cli(*argv, "--json").json
    assert verb_of([str(word) for word in argv])
    assert reply["ok"] or argv[-1] == "absent.json" or argv[0] == "doctor", reply


def test_data_that_the_schema_does_not_have_is_noticed() -> None:
    body = {
        "api": "testbed/v1",
        "ok": True,
        "code": "OK",
        "message": "",
        "hint": "",
        "data": {"stopped": True},
    }
    fits(["lab", "stop", "--json"], body)
    for data in ({"stopped": "yes"}, {"stopped": True, "more": 1}, {}):
        with pytest.raises(AssertionError, match="lab-stop: data"):
            fits(["lab", "stop"], body | {"data": data})
