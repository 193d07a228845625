"""Input files of a design: workloads, task graphs, prices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import planner
from optics import BadFile
from optics.plain import reason
from orchestrator.files.reading import MAX_GRAPH_BYTES, attentive, bytes_of, text_of
from orchestrator.inventory.positions import Problems
from orchestrator.inventory.schema import check
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.plan.design.design import Read
from orchestrator.plan.design.workload import read_text
from planner.model.workload import Workload
from planner.predict.cost import Prices


def read_workload(path: Path) -> Read:
    """Read a workload file, or a task graph (.fbuf). Raises: BadFile - everything wrong with it;
    Infeasible - it cannot be.
    """
    if path.suffix == ".fbuf":
        return _read_graph(path)
    try:
        text = text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile([f"{path}: {reason(error)}"]) from error
    with attentive(str(path)):
        return read_text(text, str(path))


def workload_of(content: Mapping[str, object]) -> Read:
    """As `read_workload`, of the content of a workload file. Raises: BadFile - also if it cannot be
    written as JSON.
    """
    try:
        text = json.dumps(content, indent=2, allow_nan=False)  # JSON is YAML
    except (TypeError, ValueError, RecursionError) as error:
        raise BadFile([f"workload: it cannot be written as JSON: {error}"]) from error
    return read_text(text, "workload")


def _read_graph(path: Path) -> Read:
    from planner.formats.importers import taskgraph

    try:
        data = bytes_of(path, MAX_GRAPH_BYTES)
    except OSError as error:
        raise BadFile([f"{path}: {reason(error)}"]) from error
    with attentive(str(path)):
        found = taskgraph.demand(data)
    name = (
        "".join(
            c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in path.stem
        ).lstrip("._-")[:63]
        or "taskgraph"
    )
    given = {
        "schema": "testbed.workload/1",
        "name": name,
        "description": f"task graph {path.name}",
        "ranks": found.n,
    }
    return Read(Workload.model_validate(given), found, hashlib.sha256(data).hexdigest())


def read_prices(path: Path | None = None) -> Prices:
    """The prices of a file, None: the supplied ones. Raises: BadFile."""
    given = path or Path(planner.__path__[0]) / "predict" / "prices.yml"
    try:
        text = text_of(given)
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile([f"{given}: {reason(error)}"]) from error
    with attentive(str(given)):
        document = read_yaml(text, str(given))
    problems = Problems(document)
    found = check(Prices, document.value, problems)
    if found is None:
        raise BadFile(problems.lines(), hint="see planner/predict/prices.yml for an example")
    return found
