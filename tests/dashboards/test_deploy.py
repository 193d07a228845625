"""The compose file agrees with what it mounts: pinned images, paths that are there, the variables
provisioning reads.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text())
PROVISIONING = DEPLOY.parent / "dashboards" / "provisioning"


def test_images_are_pinned_and_doors_are_on_loopback() -> None:
    for service in COMPOSE["services"].values():
        assert re.fullmatch(r"[\w/]+:\d+\.\d+(\.\d+)?", service["image"])
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_no_secret_has_a_default() -> None:
    for service in COMPOSE["services"].values():
        for name, value in service["environment"].items():
            if re.search(r"PASSWORD$|TOKEN$", name):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), name


def test_what_is_mounted_is_there_and_where_the_files_expect_it() -> None:
    mounts = [
        volume.split(":")
        for volume in COMPOSE["services"]["grafana"]["volumes"]
        if volume.startswith("..")
    ]
    assert all((DEPLOY / source).is_dir() and mode == "ro" for source, _, mode in mounts)
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "testbed.yaml").read_text())[
        "providers"
    ]
    assert {target for _, target, _ in mounts} == {
        "/etc/grafana/provisioning",
        provider["options"]["path"],
    }


def test_grafana_is_given_the_variables_its_files_read_and_a_refresh_short_enough() -> None:
    read = set(
        re.findall(r"\$\{(\w+)\}", (PROVISIONING / "datasources" / "testbed.yaml").read_text())
    )
    given = COMPOSE["services"]["grafana"]["environment"]
    assert read <= given.keys() and given["GF_DASHBOARDS_MIN_REFRESH_INTERVAL"] == "200ms"
    influx = COMPOSE["services"]["influxdb"]["environment"]
    assert given["TESTBED_INFLUX_DB"] == influx["DOCKER_INFLUXDB_INIT_BUCKET"]
    assert given["TESTBED_INFLUX_TOKEN"] == influx["DOCKER_INFLUXDB_INIT_ADMIN_TOKEN"]
