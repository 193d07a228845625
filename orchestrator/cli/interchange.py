"""`testbed design import` and `export`: plans from and to topology files of other programs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.shared import write_file

app = typer.Typer()


def plan_name(*wanted: str) -> str:
    """The first of these of which something is left as the name of a plan; `imported` if none."""
    kept = (
        "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in one).strip(
            "._-"
        )[:63]
        for one in wanted
    )
    return next(filter(None, kept), "imported")


@verb(
    app,
    "import",
    "Make a plan of a topology in GraphML, or of a containerlab file.",
    examples="""
testbed design import topology.graphml --out plan.json
testbed design import lab.clab.yml --out plan.json
testbed design import zoo.graphml --hosts gpu01,gpu05,gpu09 --out plan.json
""",
    more="Nodes with names of the lab's hosts or packet switches are those; if none has, nodes become hosts in the order of\n"
    "both. Interface eth3 or p3 is port 3 of its host; other ports are chosen. The lab is not contacted, and the plan has no job.",
)
def import_(
    call: Call,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The topology: GraphML, or YAML of containerlab."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the plan to this file."),
    ] = None,
    hosts: Annotated[
        str,
        typer.Option(
            "--hosts", metavar="LIST", help="Hosts in the order of the file's nodes: gpu01,gpu02."
        ),
    ] = "",
    any_port: Annotated[
        bool,
        typer.Option("--any-port", help="Choose all ports, whatever interfaces the file names."),
    ] = False,
    duplex: Annotated[
        bool,
        typer.Option(
            "--duplex",
            help="Every edge leads both ways, whatever the file says (yEd always says one way).",
        ),
    ] = False,
    name: Annotated[
        str,
        typer.Option("--name", metavar="NAME", help="Name of the plan; by default the topology's."),
    ] = "",
) -> Result:
    from optics import BadFile
    from optics.plain import counted, reason
    from orchestrator.files.reading import attentive, bytes_of
    from orchestrator.plan.interchange.containerlab import read_containerlab
    from orchestrator.plan.interchange.graphml import read_graphml
    from orchestrator.plan.interchange.importing import imported
    from orchestrator.session import load_lab

    if file is None:
        raise Usage(
            f"{call.verb}: no file given",
            hint=f"testbed {call.verb} topology.graphml --out plan.json",
        )
    if name and plan_name(name) != name:
        message = (
            f"{call.verb}: --name {name}: wanted letters, digits, '.', '_' and '-', at most 63"
        )
        raise Usage(message, hint=f"--name {plan_name(name)}")
    lab = load_lab(call.settings.inventory)
    try:
        data = bytes_of(file)
        xml = data.lstrip(b"\xef\xbb\xbf\xff\xfe \t\r\n")[:1] == b"<"
        text = "" if xml else data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile([f"{file}: {reason(error)}"]) from error
    with attentive(str(file)):
        graph = read_graphml(data, str(file)) if xml else read_containerlab(text, str(file))
        given = [host.strip() for host in hosts.split(",") if host.strip()]
        called = name or plan_name(
            "" if graph.name in ("G", "") else graph.name, file.name.partition(".")[0]
        )
        found = imported(graph, lab, called, given, any_port=any_port, duplex=duplex)
    if out is not None:
        write_file(out, found.text)
    links = found.plan["links"]
    one_direction = sum("kind" in link for link in links)
    switches = [segment["name"] for segment in found.plan.get("segments", ())]
    pairs = ", ".join(f"{node} is {host}" for node, host in found.hosts.items() if node != host)
    lines = [
        f"  read       {graph.kind}: {counted(len(graph.nodes), 'node')}, {counted(len(graph.wires), 'link')}",
        f"  hosts      {len(found.hosts)}"
        + (f": {pairs}" if pairs else ", as the file names them"),
        f"  links      {len(links)}"
        + (f", {one_direction} of one direction (--duplex: of both)" if one_direction else "")
        + f"; the file names {found.named} of their {2 * len(links)} ports",
        *([f"  switches   {', '.join(switches)}"] if switches else []),
        f"Imported: {called}" + ("" if out is None else f", in {out}"),
    ]
    data_: dict[str, Any] = {
        "plan": found.plan,
        "format": graph.kind,
        "hosts": {**found.hosts},
        "segments": {**found.segments},
        "ports_named": found.named,
    }
    data_ |= {"out": None if out is None else str(out)}
    hint = (
        f"testbed up --topology {shlex.quote(str(out))}"
        if out
        else f"testbed {call.verb} {shlex.quote(str(file))} --out plan.json"
    )
    return Result(data_, "\n".join(lines), hint=hint)


@verb(
    app,
    "export",
    "Write a plan's links as a topology file of containerlab.",
    examples="""
testbed design export plan.json --containerlab lab.clab.yml
testbed design export plan.json --containerlab lab.clab.yml --image frr
""",
    more="Hosts become containers, links veth pairs (port p3 is eth3), packet switches bridges. The lab is not contacted.",
)
def export(
    call: Call,
    plan: Annotated[Path | None, typer.Argument(metavar="PLAN", help="A plan file.")] = None,
    containerlab: Annotated[
        Path | None,
        typer.Option(
            "--containerlab", metavar="FILE", help="Write containerlab's topology to this file."
        ),
    ] = None,
    image: Annotated[
        str, typer.Option("--image", metavar="IMAGE", help="Container image of the hosts.")
    ] = "alpine:3",
) -> Result:
    from optics.plain import counted
    from orchestrator.plan.interchange import containerlab as written
    from orchestrator.session import load_lab, load_plan

    if plan is None or containerlab is None:
        missing = "plan" if plan is None else "--containerlab"
        raise Usage(
            f"{call.verb}: no {missing} given",
            hint=f"testbed {call.verb} plan.json --containerlab lab.clab.yml",
        )
    lab = load_lab(call.settings.inventory)
    read, _ = load_plan(plan, lab)
    text, left = written.containerlab(read, lab, image)
    write_file(containerlab, text)
    lines = [
        *(f"  left out   {text}" for text in left),
        f"Exported: {read.name}, {counted(len(read.hosts), 'host')}, in {containerlab}",
    ]
    data_: dict[str, Any] = {
        "plan": read.name,
        "file": str(containerlab),
        "hosts": [*read.hosts],
        "segments": [*read.segments],
        "left_out": [*left],
    }
    return Result(
        data_, "\n".join(lines), hint=f"containerlab deploy --topo {shlex.quote(str(containerlab))}"
    )
