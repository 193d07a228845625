"""Input files of a design: workloads, task graphs, traces, prices."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import planner
from optics import BadFile, HostPort
from optics.plain import reason
from orchestrator.files.reading import MAX_GRAPH_BYTES, attentive, bytes_of, text_of
from orchestrator.inventory.positions import Problems
from orchestrator.inventory.schema import check
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.plan.design.capabilities import Line
from orchestrator.plan.design.design import Read
from orchestrator.plan.design.workload import read_text
from planner.model.demand import Demand
from planner.model.workload import Workload
from planner.predict.cost import Prices

_RANK = re.compile(r"0|[1-9][0-9]{0,5}")


def read_workload(path: Path) -> Read:
    """Read a workload file, a task graph (.fbuf) or Chakra traces (.et). Raises: BadFile -
    everything wrong with it; Infeasible - it cannot be; Missing - a package is not installed.
    """
    if path.suffix == ".fbuf":
        return _read_graph(path)
    if path.suffix == ".et":
        return _read_traces(path)
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
    return _measured(path.stem, f"task graph {path.name}", found, [data])


def _read_traces(path: Path) -> Read:
    """The traces NAME.0.et, NAME.1.et, ... beside one of them."""
    from planner.formats.importers import chakra

    name, _, rank = path.stem.rpartition(".")
    if not name or not _RANK.fullmatch(rank):
        raise BadFile(
            [f"{path}: the name of a trace ends in its rank: {path.stem}.0.et"],
            hint="name the trace of any rank, those of the others are read from beside it",
        )
    try:
        ranks = {
            int(end)
            for one in path.parent.iterdir()
            if one.name.startswith(f"{name}.")
            and _RANK.fullmatch(end := one.name[len(name) + 1 :].removesuffix(".et"))
            and one.suffix == ".et"
        } | {int(rank)}
        missing = sorted(set(range(max(ranks))) - ranks)
        if missing:
            raise BadFile(
                [
                    f"{path.with_name(f'{name}.{missing[0]}.et')}: missing; there is a trace of rank {max(ranks)}"
                ],
                hint="give the traces of all ranks, numbered from 0",
            )
        left, traces = MAX_GRAPH_BYTES, []
        for number in range(len(ranks)):
            path = path.with_name(f"{name}.{number}.et")
            traces.append(bytes_of(path, left))
            left -= len(traces[-1])
    except OSError as error:
        raise BadFile([f"{path}: {reason(error)}"]) from error
    with attentive(str(path)):
        found = chakra.demand(traces)
    return _measured(name, f"Chakra traces {name}.0.et to {path.name}", found, traces)


def _measured(name: str, description: str, found: Demand, data: Sequence[bytes]) -> Read:
    """A demand of another program's files; a name that plans take is made of theirs."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)
    given = {
        "schema": "testbed.workload/1",
        "name": kept.lstrip("._-")[:63] or "imported",
        "description": description,
        "ranks": found.n,
    }
    digest = hashlib.sha256()
    for part in data:
        digest.update(part)
    return Read(Workload.model_validate(given), found, digest.hexdigest())


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


def read_lines(inventory: Path) -> dict[HostPort, Line]:
    """The lines at ports of an emulated lab, by its emulator.yml; of real ones no file knows them.
    Raises: BadFile - it cannot be read.
    """
    path = inventory / "emulator.yml"
    if not path.is_file():
        return {}
    try:
        given = read_yaml(text_of(path), str(path)).value.get("lines", ())
        return {
            HostPort(host, int(number)): Line(
                float(entry.get("rate_mbps", 0.0)),
                float(entry["delay_ms"]) / 1e3,
                float(entry.get("loss", 0.0)),
            )
            for entry in given
            for host, _, number in (port.rpartition(":p") for port in entry["ports"])
        }
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile([f"{path}: {reason(error)}"]) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{path}: lines: wanted a list of {{ports: [gpu01:p1, ...], delay_ms: 5}}: {error}"
        raise BadFile([why]) from error
