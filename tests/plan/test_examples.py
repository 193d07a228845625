"""The files that come with the project: plans that do what they say, inventories that Ansible reads
alike, the schema.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from optics import BadFile
from orchestrator.fabric.circuits import circuits, over_budget
from orchestrator.inventory.lab import Lab, read_lab
from orchestrator.inventory.logins import Secret
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.plan.edges import plan_schema
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan
from orchestrator.session import load_lab, load_plan
from tests.kit.examples import PLANS, plan_inventory
from tests.kit.labs import lab_of
from tests.oracles.rings import edge_disjoint, plan_rings

ROOT = Path(__file__).parents[2]


def test_the_committed_schema_is_the_one_the_program_uses() -> None:
    committed = json.loads((ROOT / "docs" / "reference" / "plan.schema.json").read_text())
    assert committed == plan_schema(), (
        "write it again: testbed examples schema plan > docs/reference/plan.schema.json"
    )


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_an_example_is_named_like_its_file_fits_the_schema_and_needs_no_warning(path: Path) -> None:
    lab = load_lab(ROOT / "inventory" / plan_inventory(path.name))
    text = path.read_text()
    document = json.loads(text)
    jsonschema.validate(document, plan_schema(), cls=jsonschema.Draft202012Validator)
    assert (
        path.parent / document["$schema"]
    ).resolve() == ROOT / "docs" / "reference" / "plan.schema.json"
    plan, _ = load_plan(path, lab)
    assert plan.name == path.stem and plan.description and not plan.warnings and plan.job
    links = assign_ports(plan.links, lab)
    assert not over_budget(circuits(links, lab), plan.acceptance.max_loss_db)
    assert not edge_disjoint(plan_rings(plan.job, links, lab))


@pytest.mark.parametrize(
    ("name", "links", "rings"),
    [("topoopt-12", 24, 4), ("parallel-ring-12", 24, 4), ("torus-3x4", 24, 4), ("ring-12", 12, 1)],
)
def test_an_example_has_the_links_and_rings_it_speaks_of(
    name: str, links: int, rings: int, lab: Lab
) -> None:
    plan = read_plan((ROOT / "examples" / f"{name}.json").read_text(), name, lab)
    assert (len(plan.links), len(plan.rings)) == (links, rings)


def test_the_four_rings_of_the_topoopt_plan_are_the_strides_1_11_5_and_7(lab: Lab) -> None:
    plan = read_plan((ROOT / "examples" / "topoopt-12.json").read_text(), "topoopt-12.json", lab)
    assert [[int(host[3:]) - 1 for host in ring][:3] for ring in plan.rings] == [
        [0, 1, 2],
        [0, 11, 10],
        [0, 5, 10],
        [0, 7, 2],
    ]


def test_no_link_joins_the_two_shards(lab: Lab) -> None:
    plan = read_plan((ROOT / "examples" / "two-shards.json").read_text(), "two-shards.json", lab)
    assert all(
        (int(a[3:]) <= 6) == (int(b[3:]) <= 6) for a, b in (link.hosts for link in plan.links)
    )


def test_the_hardware_inventory_is_read_and_keeps_its_password_elsewhere() -> None:
    lab = lab_of("example-lab")
    assert len(lab.hosts) == 12 and len(lab.fibres) == 48 and set(lab.devices) == {"ocs1", "ocs2"}
    assert lab.secrets == {"ocs2": Secret("env", "TESTBED_OCS2_PASSWORD")}
    assert lab.devices["ocs2"].password == ""
    host = lab.hosts["node-c"]
    assert (host.forwarding, host.port_address(2), host.ssh.user, host.ssh.known_hosts) == (
        "npar-rdma",
        "10.100.3.2",
        "root",
        "~/.ssh/testbed_known_hosts",
    )


AWKWARD = """
all:
  vars: {ansible_user: top, testbed_lanes: 3, testbed_gpus: 1}
  hosts:
    gpu[01:03]: {testbed_ports: {1: {interface: a}}}
    web: {}
  children:
    zeta:
      vars: {testbed_gpus: 4, testbed_mgmt_address: 10.0.0.1}
      hosts: {gpu01: {testbed_host_id: 7}, gpu02: {testbed_host_id: 8}}
    alpha:
      vars: {testbed_gpus: 5, ansible_port: 2200}
      hosts: {gpu01: null, gpu03: {testbed_host_id: 9, ansible_host: 192.0.2.3}}
      children:
        aardvark:
          vars: &common {testbed_gpus: 6}
          hosts: {gpu03: {}}
other:
  vars:
    <<: *common
    ansible_user: other
  hosts: {gpu02: {ansible_host: "{{ inventory_hostname }}"}}
"""


@pytest.mark.parametrize("source", ["emulated", "example-lab", "awkward"])
def test_our_reading_of_an_inventory_is_that_of_ansible(source: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(
        AWKWARD if source == "awkward" else (ROOT / "inventory" / source / "hosts.yml").read_text()
    )
    asked = [str(Path(sys.executable).parent / "ansible-inventory"), "-i", str(path), "--list"]
    theirs: dict[str, Any] = json.loads(
        subprocess.run(asked, capture_output=True, check=True, text=True, timeout=60).stdout
    )
    if source == "awkward":
        devices = 'lab: x\ndevices:\n  ocs1: {driver: d, address: "tcp://192.0.2.1:1"}\n'
        lab = read_lab(path.read_text(), devices, "fibres: []\n")
    else:
        lab = lab_of(source)
    for name, host in lab.hosts.items():
        known = theirs["_meta"]["hostvars"][name]
        assert {str(number): port.interface for number, port in host.ports.items()} == {
            number: port["interface"] for number, port in known["testbed_ports"].items()
        }
        assert (
            host.host_id == known["testbed_host_id"]
            and host.gpus == known["testbed_gpus"]
            and host.lanes == known["testbed_lanes"]
        )
        assert host.ssh.user == known["ansible_user"] and host.ssh.port == known.get(
            "ansible_port", 22
        )
        assert host.ssh.address == known.get("ansible_host", name).replace(
            "{{ inventory_hostname }}", name
        )
    fabric = {
        name for name, known in theirs["_meta"]["hostvars"].items() if "testbed_host_id" in known
    }
    assert set(lab.hosts) == fabric


def test_an_inventory_file_that_is_a_list_is_refused_politely() -> None:
    with pytest.raises(BadFile, match=r"hosts\.yml:1:1: wanted a mapping of groups"):
        read_lab(
            "- gpu01\n",
            "lab: x\ndevices: {ocs1: {driver: d, address: 'tcp://192.0.2.1:1'}}\n",
            "fibres: []\n",
        )


def test_the_reader_of_yaml_keeps_tagged_secrets_as_text_and_dates_as_words() -> None:
    document = read_yaml(
        "a: !vault |\n  $ANSIBLE_VAULT\nb: 2026-11-21\nc: 1_000\nd: [1, 2.5, null, yes]\n", "x.yml"
    )
    assert document.value == {
        "a": "$ANSIBLE_VAULT\n",
        "b": "2026-11-21",
        "c": 1000,
        "d": [1, 2.5, None, True],
    }
    assert document.spot(("d", 2)) == (5, 13)


def test_no_inventory_leaves_the_home_to_ssh_which_has_its_own_idea_of_it() -> None:
    """To ssh ~ is the home in the list of users, to Python and Ansible it is $HOME; under sudo or
    in a container they differ.
    """
    files = sorted((ROOT / "inventory").glob("*/hosts.yml"))
    named = [
        line
        for file in files
        for line in file.read_text().splitlines()
        if "UserKnownHostsFile=" in line
    ]
    assert len(named) == len(files) and not [
        line for line in named if "UserKnownHostsFile=~" in line
    ]
