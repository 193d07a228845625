"""testbed_bmc of hosts.yml: what it takes, and each mistake with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from optics import BadFile, Missing
from orchestrator.credentials import bmc_password, withheld
from orchestrator.inventory.logins import Secret
from tests.kit.managed import managed_lab, managed_texts

HERE = "hosts.yml:9:20: all.hosts.gpu01.testbed_bmc"


@pytest.mark.parametrize(
    ("bmc", "problem"),
    [
        ("{username: a}", f"{HERE}: the field address is missing"),
        ('{address: "https://b"}', f"{HERE}: the field username is missing"),
        ("yes please", f'{HERE}: wanted a mapping, got "yes please"'),
        ('{address: "https://b", username: a, pasword: x}', "unknown field; did you mean password?"),
        ('{address: "http://192.0.2.7", username: a}', "hosts.yml:9:30: .*is not the address of a BMC"),
        ('{address: "https://a:b@192.0.2.7", username: a}', "is not the address of a BMC"),
        ('{address: "https://192.0.2.7/redfish/v1", username: a}', "is not the address of a BMC"),
        ('{address: "https://192.0.2.7:99999", username: a}', "is not the address of a BMC"),
        ('{address: "https://{{ bmc }}", username: a}', "is not the address of a BMC"),
        ('{address: "https://b", username: ""}', "wanted at least 1 character"),
        ('{address: "https://b", username: a, system: "../x"}', "wanted a name of letters"),
        ('{address: "https://b", username: a, timeout_s: 9999}', "wanted at most 300, got 9999"),
        (
            '{address: "https://b", username: a, password: x, password_env: Y}',
            "the password is already given by password",
        ),
    ],
)  # fmt: skip
def test_a_mistake_has_a_line_and_a_column(bmc: str, problem: str) -> None:
    with pytest.raises(BadFile, match=problem):
        managed_lab(bmc)


def test_two_hosts_with_one_bmc_are_refused() -> None:
    hosts, *rest = managed_texts('{address: "https://BMC-a/", username: a}')
    from orchestrator.inventory.lab import read_lab

    hosts += '      testbed_bmc: {address: "https://bmc-a", username: b}\n'
    with pytest.raises(BadFile, match=r"hosts\.yml:12:30: .*gpu02 has the same BMC as gpu01"):
        read_lab(hosts, *rest)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://b", "https://b:443", True),
        ("https://b:8443", "https://b", False),
        ("https://b, system: n1", "https://b, system: n2", False),
        ("https://b, system: n1", "https://b, system: n1", True),
        ("https://b, system: n1", "https://b", True),
    ],
)
def test_a_bmc_is_its_host_its_port_and_its_system(one: str, other: str, same: bool) -> None:
    from orchestrator.inventory.lab import read_lab

    def login(text: str) -> str:
        address, _, more = text.partition(",")
        return f'{{address: "{address}", username: a{more and "," + more}}}'

    hosts, *rest = managed_texts(login(one))
    hosts += f"      testbed_bmc: {login(other)}\n"
    if same:
        with pytest.raises(BadFile, match="gpu02 has the same BMC as gpu01"):
            read_lab(hosts, *rest)
    else:
        assert all(host.bmc for host in read_lab(hosts, *rest).hosts.values())


def test_hosts_may_share_what_their_group_says_with_the_name_of_each() -> None:
    from orchestrator.inventory.lab import read_lab

    hosts, *rest = managed_texts("{}")
    hosts = hosts.replace("      testbed_bmc: {}\n", "").replace(
        "  hosts:",
        '    testbed_bmc: {address: "https://{{ inventory_hostname }}-bmc", username: a}\n  hosts:',
    )
    lab = read_lab(hosts, *rest)
    assert [host.bmc and host.bmc.address for host in lab.hosts.values()] == [
        "https://gpu01-bmc",
        "https://gpu02-bmc",
    ]


def test_the_password_comes_from_where_devices_have_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = managed_lab('{address: "https://b", username: a, password_env: BMC_PASSWORD}')
    host = lab.hosts["gpu01"]
    assert host.bmc is not None and host.bmc.secret == Secret("env", "BMC_PASSWORD")
    assert withheld(lab) == {"BMC_PASSWORD"}
    monkeypatch.delenv("BMC_PASSWORD", raising=False)
    with pytest.raises(Missing, match="BMC of gpu01: no password: BMC_PASSWORD is not set"):
        bmc_password(host)
    monkeypatch.setenv("BMC_PASSWORD", "s3cr3t")
    assert bmc_password(host) == "s3cr3t" and "s3cr3t" not in repr(host)
    file = tmp_path / "password"
    file.write_text("from a file\n")
    host = managed_lab(f'{{address: "https://b", username: a, password_file: "{file}"}}').hosts[
        "gpu01"
    ]
    file.chmod(0o644)
    with pytest.raises(BadFile, match=r"hosts\.yml: BMC of gpu01: password_file: .*read by others"):
        bmc_password(host)
    file.chmod(0o600)
    assert bmc_password(host) == "from a file"
    assert bmc_password(managed_lab('{address: "https://b", username: a}').hosts["gpu02"]) == ""


def test_what_restarts_a_host_is_named_where_it_has_a_bmc() -> None:
    hosts = managed_lab('{address: "https://b", username: a}').hosts
    assert hosts["gpu01"].ssh.remedy == "testbed host power gpu01 --cycle"
    assert hosts["gpu02"].ssh.remedy == ""
