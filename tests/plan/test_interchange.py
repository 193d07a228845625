"""Topologies of other programs become plans of this lab, or are refused with line and column; plans
become containerlab files.
"""

from __future__ import annotations

import io
import json

import networkx
import pytest
import yaml

from optics import BadFile, Infeasible
from orchestrator.inventory.lab import Lab
from orchestrator.plan.interchange.containerlab import containerlab, read_containerlab
from orchestrator.plan.interchange.graph import End
from orchestrator.plan.interchange.graphml import read_graphml
from orchestrator.plan.interchange.importing import imported
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan
from tests.house.repository import ROOT
from tests.kit.examples import PLANS, plan_inventory
from tests.properties.switches import switched_lab

LINKED = ("emulated", "emulated-lookahead")
EXAMPLES = [
    path.name for path in PLANS if plan_inventory(path.name) in LINKED and path.stem != "schedule"
]


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return switched_lab(tmp_path_factory.mktemp("switches"))


def graphml(body: str, head: str = "", edges: str = "undirected") -> bytes:
    text = f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{head}<graph edgedefault="{edges}">{body}</graph></graphml>'
    return text.encode()


def clab(links: str, nodes: str = "gpu01: , gpu02: ") -> str:
    return f"name: x\ntopology:\n  nodes: {{{nodes}}}\n  links:\n{links}"


def refused(lab: Lab, data: bytes | str, **options: object) -> list[str]:
    with pytest.raises(BadFile) as error:
        graph = read_graphml(data, "x") if isinstance(data, bytes) else read_containerlab(data, "x")
        imported(graph, lab, "p", **options)  # type: ignore[arg-type]
    return list(error.value.problems)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_plan_comes_back_from_containerlab_as_it_went(name: str, lab: Lab) -> None:
    plan = read_plan((ROOT / "examples" / name).read_text(), name, lab)
    text, _ = containerlab(plan, lab)
    back = imported(read_containerlab(text, "x.clab.yml"), lab, plan.name)
    again = read_plan(back.text, "x", lab)
    assert {(link.a, link.b) for link in again.links} == {
        (link.a, link.b) for link in assign_ports(plan.links, lab)
    }
    assert back.by_name and back.named == 2 * len(plan.links)


def test_packet_switches_come_back_from_containerlab_with_the_hosts_that_use_them(
    switched: Lab,
) -> None:
    hosts = ["gpu01", "gpu02", "gpu05"]
    document = {
        "schema": "testbed.plan/1",
        "name": "p",
        "links": [{"a": "gpu01:p1", "b": "gpu02:p1"}],
    }
    plan = read_plan(
        json.dumps(document | {"segments": [{"name": "ideal", "hosts": hosts}]}), "p", switched
    )
    text, left = containerlab(plan, switched, "frr:9")
    nodes = yaml.safe_load(text)["topology"]["nodes"]
    assert (
        nodes["ideal"] == {"kind": "bridge"}
        and nodes["gpu05"] == {"kind": "linux", "image": "frr:9"}
        and not left
    )
    assert "ip link add ideal type bridge" in text
    back = imported(read_containerlab(text, "x"), switched, "p").plan
    assert back["segments"] == [{"name": "ideal", "hosts": hosts}] and back["links"] == [
        {"a": "gpu01:p1", "b": "gpu02:p1"}
    ]


def test_a_file_for_containerlab_has_no_name_twice_where_the_machine_has_one(switched: Lab) -> None:
    plan = read_plan(
        json.dumps(
            {
                "schema": "testbed.plan/1",
                "name": "p",
                "segments": [{"name": "ideal"}, {"name": "rail1"}],
            }
        ),
        "p",
        switched,
    )
    links = yaml.safe_load(containerlab(plan, switched)[0])["topology"]["links"]
    ends = [end for link in links for end in link["endpoints"]]
    assert len(set(ends)) == len(ends) == 2 * (6 + 3)
    on_the_machine = [end.partition(":")[2] for end in ends if not end.startswith("gpu")]
    assert len(set(on_the_machine)) == 9 and max(map(len, on_the_machine)) <= 15


def test_what_containerlab_cannot_say_is_not_written(lab: Lab) -> None:
    document = {
        "schema": "testbed.plan/1",
        "name": "p",
        "links": [{"a": "gpu01:p1", "b": "gpu02:p1", "kind": "simplex"}],
    }
    with pytest.raises(
        Infeasible, match=r"links\[0\]: gpu01:p1 -> gpu02:p1 is a link of one direction"
    ):
        containerlab(read_plan(json.dumps(document), "p", lab), lab)


def test_networkx_and_this_program_mean_the_same_by_a_graph(lab: Lab) -> None:
    graph = networkx.petersen_graph()
    file = io.BytesIO()
    networkx.write_graphml(graph, file)
    found = imported(read_graphml(file.getvalue(), "petersen.graphml"), lab, "petersen")
    assert list(found.hosts.values()) == [f"gpu{n:02}" for n in range(1, 11)] and not found.by_name
    node = {host: int(name) for name, host in found.hosts.items()}
    assert {frozenset((node[link["a"]], node[link["b"]])) for link in found.plan["links"]} == {
        frozenset(edge) for edge in graph.edges
    }


def test_a_label_may_be_the_name_of_a_host_and_yeds_too(lab: Lab) -> None:
    head = '<key id="k" for="node" attr.name="label"/><key id="y" for="node"/>'
    body = (
        '<node id="n0"><data key="k"> gpu03 </data></node>'
        '<node id="n1"><data key="y"><y:ShapeNode xmlns:y="http://www.yworks.com/xml/graphml"><y:NodeLabel>gpu04</y:NodeLabel>'
        '</y:ShapeNode></data></node><edge source="n0" target="n1" sourceport="p2" targetport="eth2"/>'
    )
    found = imported(read_graphml(graphml(body, head), "x"), lab, "p")
    assert (
        found.plan["links"] == [{"a": "gpu03:p2", "b": "gpu04:p2"}]
        and found.by_name
        and found.named == 2
    )


def test_edges_of_both_directions_are_one_duplex_link_and_one_alone_is_simplex(lab: Lab) -> None:
    nodes = "".join(f'<node id="gpu0{n}"/>' for n in (1, 2, 3))
    edges = [("gpu01", "gpu02"), ("gpu02", "gpu01"), ("gpu02", "gpu03"), ("gpu01", "gpu02")]
    body = nodes + "".join(f'<edge source="{a}" target="{b}"/>' for a, b in edges)
    simplex = {"kind": "simplex"}
    assert imported(read_graphml(graphml(body, edges="directed"), "x"), lab, "p").plan["links"] == [
        {"a": "gpu01", "b": "gpu02"},
        {"a": "gpu02", "b": "gpu03", **simplex},
        {"a": "gpu01", "b": "gpu02", **simplex},
    ]


def test_hosts_given_by_the_operator_are_the_nodes_in_order_whatever_they_are_called(
    lab: Lab,
) -> None:
    graph = read_containerlab(clab('  - endpoints: ["gpu01:eth1", "gpu02:e1-1"]'), "x")
    found = imported(graph, lab, "p", ["gpu07", "gpu03"])
    assert found.plan["links"] == [{"a": "gpu07:p1", "b": "gpu03"}] and found.named == 1
    assert imported(graph, lab, "p", ["gpu07", "gpu03"], any_port=True).plan["links"] == [
        {"a": "gpu07", "b": "gpu03"}
    ]


def test_endpoints_may_be_mappings_and_nodes_may_be_empty(lab: Lab) -> None:
    links = "  - type: veth\n    endpoints: [{node: gpu01, interface: eth4}, {node: gpu02, interface: eth4, mac: x}]\n    mtu: 9000\n"
    (wire,) = read_containerlab(clab(links), "x").wires
    assert (wire.a, wire.b, wire.spot) == (End("gpu01", "eth4"), End("gpu02", "eth4"), (5, 5))


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>\n'
OUTSIDE = b'<!DOCTYPE x [<!ENTITY secret SYSTEM "file:///etc/passwd">]>\n'


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (
            BOMB + graphml('<node id="&b;"/>'),
            "a document type (<!DOCTYPE ...>) is not read, because it could define entities; remove it",
        ),
        (OUTSIDE + graphml('<node id="a"/>'), "a document type"),
        (
            graphml("").replace(b"<graph ", b"\n <grap"),
            "x:2:18: not XML: not well-formed (invalid token)",
        ),
        (b"<svg/>", "x:1:1: wanted the root element <graphml>, found <svg>"),
        (
            b'<graphml xmlns="http://graphml.graphdrawing.org/xmlns"/>',
            "x:1:1: the file has no <graph>",
        ),
        (
            graphml('<node id="a"><graph edgedefault="directed"/></node>'),
            "x:1:101: a second <graph>: a plan is made of a file with one",
        ),
        (
            graphml("\n<hyperedge/>"),
            "x:2:1: a <hyperedge> joins any number of nodes; wanted <edge>",
        ),
        (graphml('\n<node id="a"/><node id="a"/>'), "x:2:15: node a is already in line 2"),
        (
            graphml('<node id="a"/>\n<edge id="e" source="a" target="b"/>'),
            "x:2:1: edge e: its target b is no node of the file",
        ),
        (graphml('<node id="a"/>\n<edge source="a"/>'), "x:2:1: edge 1: no target"),
        (
            graphml("", edges="sideways"),
            "x:1:56: edgedefault: wanted one of directed, true, 1, undirected, false, 0, got sideways",
        ),
        (
            graphml('<node id="a&#10;E-OK done"/>'),
            r"x:1:88: a <node> has characters in its name that cannot be printed: a\nE-OK done",
        ),
        (graphml("<a>" * 70), "x:1:274: nested deeper than 64 levels"),
        (graphml("".join(f'<node id="{n}"/>' for n in range(4097))), "more than 4096 nodes"),
        ("[", "x:1:2: not YAML"),
        ("name: x\n", "x:1:1: the field topology is missing"),
        (
            clab('  - endpoints: ["gpu01:eth1"]'),
            "x:5:16: topology.links[0].endpoints: wanted 2 endpoints, got 1",
        ),
        (
            clab('  - endpoints: ["gpu01:eth1", "host:eth9"]'),
            "x:5:31: topology.links[0].endpoints[1]: host is no node of the file, but a part of",
        ),
        (
            clab("  - {type: mgmt-net, endpoint: {node: gpu01}}"),
            "x:5:12: topology.links[0].type: a link of type mgmt-net joins a node with the machine",
        ),
        (
            clab('  - endpoints: ["gpu01:eth1", "gpu01:eth2"]'),
            "x:5:5: topology.links[0]: both ends are at gpu01; a link joins two hosts",
        ),
        (
            clab('  - endpoints: ["gpu01:eth7", "gpu02:eth1"]'),
            "x:5:5: topology.links[0]: gpu01 has interface eth7, but gpu01 has no port p7",
        ),
        (
            clab(
                '  - endpoints: ["gpu01:eth1", "gpu02:eth1"]\n  - endpoints: ["gpu02:eth1", "gpu01:eth2"]\n'
            ),
            "x:6:5: topology.links[1]: port gpu02:p1 is already used by topology.links[0]",
        ),
        (
            clab("    []", "gpu01: , gpu13: "),
            "x:3:20: node gpu13: no host of the lab has its name (12 hosts, gpu01..gpu12)",
        ),
        (
            clab("    []", "gpu01: , sw: {kind: bridge}"),
            "x:3:20: node sw: packet switch sw is no segment of the lab (it has none; fibres.yml lists them)",
        ),
        (
            clab("    []", ", ".join(f"n{n}: " for n in range(13))),
            "x:3:11: the file has 13 nodes to be hosts, the lab 12 hosts with fibres",
        ),
    ],
)
def test_what_has_no_place_in_a_plan_is_refused_at_its_place(
    lab: Lab, data: bytes | str, problem: str
) -> None:
    assert any(problem in line for line in refused(lab, data)), refused(lab, data)


def test_hosts_that_do_not_fit_the_file_are_refused(lab: Lab) -> None:
    file = clab('  - endpoints: ["gpu01:eth1", "gpu02:eth1"]')
    assert (
        "x:3:11: --hosts gpu99: not in the lab (12 hosts, gpu01..gpu12); did you mean gpu09?"
        in refused(lab, file, hosts=["gpu01", "gpu99"])
    )
    assert "x:3:11: --hosts gpu01: named twice" in refused(lab, file, hosts=["gpu01", "gpu01"])
    assert "x:3:11: the file has 2 nodes to be hosts, --hosts names 1" in refused(
        lab, file, hosts=["gpu01"]
    )


def test_a_topology_that_no_choice_of_ports_can_make_is_refused_at_the_link_that_is_too_many(
    lab: Lab,
) -> None:
    links = "\n".join('  - endpoints: ["gpu01:x", "gpu02:x"]' for _ in range(5))
    assert refused(lab, clab(links)) == [
        "x:9:5: topology.links[4]: gpu01 is in 5 links but has 4 ports with a fibre",
        "x:9:5: topology.links[4]: gpu02 is in 5 links but has 4 ports with a fibre",
    ]


def test_ports_that_no_fibre_joins_and_edges_drawn_one_way_have_a_way_out(lab: Lab) -> None:
    graph = read_containerlab(clab('  - endpoints: ["gpu01:eth1", "gpu02:eth2"]'), "x")
    with pytest.raises(BadFile, match="no fibre path") as error:
        imported(graph, lab, "p")
    assert "--any-port" in error.value.hint
    one_direction = '<node id="gpu01"/><node id="gpu02"/><edge source="gpu01" target="gpu02"/>'
    graph = read_graphml(graphml(one_direction, edges="directed"), "x")
    assert imported(graph, lab, "p", duplex=True).plan["links"] == [{"a": "gpu01", "b": "gpu02"}]
