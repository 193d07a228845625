"""Two owners on the same hosts of an emulated lab, by partitions: each comes, verifies, trains and
goes without the other's notice.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Lab
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

SMALL = ["--hosts", "2", "--ports", "1", "--free-ports", "--electrical", "ideal@40"]
LEFT, RIGHT = {"TESTBED_OWNER": "left"}, {"TESTBED_OWNER": "right"}


@pytest.fixture
def partitioned(small: Lab) -> Lab:
    """The lab with two partitions on each host; the emulated lab itself knows nothing of
    partitions.
    """
    hosts = small.inventory / "hosts.yml"
    text = hosts.read_text()
    if "testbed_partitions" not in text:
        for number in (1, 2):
            line = next(
                one for one in text.splitlines() if one.strip() == f"testbed_host_id: {number}"
            )
            indent = line[: len(line) - len(line.lstrip())]
            text = text.replace(
                line,
                f"{line}\n{indent}testbed_partitions: {{a: {{lanes: [0, 1], share: 0.5}}, b: {{lanes: [2], share: 0.25}}}}",
            )
        hosts.write_text(re.sub(r"testbed_lanes: \d+", "testbed_lanes: 3", text))
    return small


def plan(lab: Lab, name: str, part: str) -> Path:
    hosts = [f"gpu01/{part}", f"gpu02/{part}"]
    job = {
        "name": name,
        "workload": "train",
        "ranks": hosts,
        "args": {"iterations": 0, "hidden": 64, "batch": 4},
    }
    return lab.plan(name, [], segments=[{"name": "ideal", "hosts": hosts}], job=job)


@pytest.mark.long
def test_two_owners_train_on_the_same_hosts_and_one_goes_without_the_others_notice(
    partitioned: Lab,
) -> None:
    lab = partitioned
    one = lab.up(plan(lab, "one", "a"), **LEFT).must()
    assert (one["pairs_ok"], one["pairs_total"], one["writes"]) == (2, 2, 0)
    two = lab.up(plan(lab, "two", "b"), **RIGHT).must()
    assert (two["pairs_ok"], two["pairs_total"]) == (2, 2)
    assert (
        lab.testbed("verify", **LEFT).must()["ok"] and lab.testbed("verify", **RIGHT).must()["ok"]
    )
    whole = lab.up(lab.plan("whole", [], segments=[{"name": "ideal"}]), TESTBED_OWNER="third")
    assert whole.exit_code != 0 and "gpu01: routes are active on gpu01/a" in str(whole.envelope)

    def trained(**owner: str) -> int:
        return int(lab.testbed("status", **owner).must()["job"]["iterations"] or 0)

    until(lambda: trained(**LEFT) > 2 and trained(**RIGHT) > 2, 60)
    before = trained(**RIGHT)
    assert lab.testbed("down", "--yes", **LEFT).exit_code == 0
    until(lambda: trained(**RIGHT) > before + 2, 60)
    assert lab.testbed("verify", **RIGHT).must()["ok"]
    assert lab.testbed("down", "--yes", **RIGHT).exit_code == 0
    assert (
        lab.up(lab.plan("whole", [], segments=[{"name": "ideal"}]), TESTBED_OWNER="third").must()[
            "pairs_ok"
        ]
        == 2
    )
    assert "gpu01/a: routes are active on gpu01" in str(
        lab.up(plan(lab, "one", "a"), **LEFT).envelope
    )
    lab.testbed("down", "--yes", TESTBED_OWNER="third").must()
