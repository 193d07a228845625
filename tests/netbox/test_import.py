"""`testbed lab import netbox`, as typed, with a server that plays back what NetBox 4.7.3 answered."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import main
from orchestrator.session import load_lab
from tests.netbox.served import TOKEN, Served, emptied, populated, recorded, serving


def needed() -> None:
    """Skip the test without the library, which `make test` installs; in continuous integration it
    fails.
    """
    if find_spec("pynetbox") is None:
        if os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail("pynetbox is not installed: pip install -e '.[dev]'")
        pytest.skip("pynetbox is not installed: pip install -e '.[dev]'")


@pytest.fixture
def netbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    needed()
    for name in ("DATA", "STATE", "LOCK"):
        monkeypatch.setenv(f"TESTBED_{name}_DIR", str(tmp_path / name.lower()))
    for name in ("CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("default login someone password else\n")
    with serving(recorded()) as served:
        monkeypatch.setenv("TESTBED_NETBOX_URL", served.url)
        monkeypatch.setenv("TESTBED_NETBOX_TOKEN", TOKEN)
        yield served


def typed(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = main.run(["lab", "import", "netbox", *map(str, argv)])
    said = capsys.readouterr()
    assert TOKEN not in said.out + said.err
    return code, said.out, said.err


Said = pytest.CaptureFixture[str]


def test_an_inventory_is_written_that_this_program_reads(
    netbox: Served, tmp_path: Path, capsys: Said
) -> None:
    code, out, err = typed(capsys, "--out", tmp_path / "mylab")
    assert code == 0 and "4 hosts, 2 devices, 7 fibres, 1 trunk; written to" in out, err
    assert "left out gpu04 eth1: " in out
    lab = load_lab(tmp_path / "mylab")
    assert (len(lab.hosts), len(lab.fibres), len(lab.trunks)) == (4, 7, 1)
    assert not [path for path in (tmp_path / "mylab").iterdir() if TOKEN in path.read_text()]
    assert {method for method, _, _ in netbox.asked} == {"GET"}


def test_lists_are_read_by_pages_not_by_cable(
    netbox: Served, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.verbs.netbox.PAGE", 10)
    assert typed(capsys, "--out", tmp_path / "mylab")[0] == 0
    pages = [given["offset"] for _, name, given in netbox.asked if name == "cables"]
    assert pages == ["0", "10", "20"]
    assert len(load_lab(tmp_path / "mylab").fibres) == 7


def test_an_existing_inventory_changes_only_with_write(
    netbox: Served, tmp_path: Path, capsys: Said
) -> None:
    typed(capsys, "--out", tmp_path / "mylab")
    before = {path.name: path.read_text() for path in (tmp_path / "mylab").iterdir()}
    code, out, _ = typed(capsys, "--out", tmp_path / "mylab", "--write")
    assert code == 0 and "has no differences" in out
    netbox.lists["devices"] = [d for d in netbox.lists["devices"] if d["name"] != "gpu02"]
    assert typed(capsys, "--out", tmp_path / "mylab")[0] == 0
    code, out, err = typed(capsys, "--out", tmp_path / "mylab", "--exit-code")
    assert code == 8 and "removed  fibre  fibre-2" in out and "--write" in err
    assert {path.name: path.read_text() for path in (tmp_path / "mylab").iterdir()} == before
    code, out, _ = typed(capsys, "--out", tmp_path / "mylab", "--write", "--json")
    data = json.loads(out)["data"]
    assert code == 0 and len(data["differences"]) == 3
    assert [Path(name).name for name in data["written"]] == ["hosts.yml", "fibres.yml"]
    assert "gpu02" not in load_lab(tmp_path / "mylab").hosts


def test_a_mistake_in_netbox_writes_nothing(netbox: Served, tmp_path: Path, capsys: Said) -> None:
    next(d for d in netbox.lists["devices"] if d["name"] == "gpu03")["name"] = "../up"
    code, _, err = typed(capsys, "--out", tmp_path / "mylab")
    assert code == 3 and "'../up'" in err and "nothing was written" in err
    assert not (tmp_path / "mylab").exists()


@pytest.mark.usefixtures("netbox")
def test_circuits_that_cannot_be_written_leave_no_inventory(tmp_path: Path, capsys: Said) -> None:
    code, _, err = typed(capsys, "--out", tmp_path / "mylab", "--write-circuits", "nosuch")
    assert code != 0 and "nosuch" in err
    assert not (tmp_path / "mylab").exists()


def test_two_fibres_at_one_switch_port_write_nothing(
    netbox: Served, tmp_path: Path, capsys: Said
) -> None:
    for cable in netbox.lists["cables"]:
        for end in cable["b_terminations"]:
            if end["object"]["device"]["name"] == "ocs2" and end["object"]["name"] == "2":
                end["object"]["name"] = "1"
    code, _, err = typed(capsys, "--out", tmp_path / "mylab")
    assert code == 3 and "a fibre into ocs2:1 is already defined" in err
    assert not (tmp_path / "mylab").exists()


def test_tags_that_rewriting_would_lose_are_refused(
    netbox: Served, tmp_path: Path, capsys: Said
) -> None:
    typed(capsys, "--out", tmp_path / "mylab")
    hosts = tmp_path / "mylab" / "hosts.yml"
    hosts.write_text(hosts.read_text().replace("ansible_user: ", "ansible_user: &who "))
    code, _, err = typed(capsys, "--out", tmp_path / "mylab")
    assert code == 3 and "YAML tags or anchors" in err


@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        ((200, {}, b"<html>"), 5, "the answer is not NetBox's"),
        ((200, {}, b'{"count": 3, "results": []}'), 5, "3 cables announced, the list ends at 0"),
        ((200, {}, b'{"count": 300000, "results": [1]}'), 5, "at most 100000 are read"),
        ((200, {}, b'{"count": 1, "results": ["x"]}'), 3, "cable at 0"),
        ((200, {}, b"[" * 100_000), 5, "the answer is not NetBox's"),
        ((302, {"Location": "http://192.0.2.1/"}, b""), 7, "refused to read cables: 302"),
        ((500, {}, b"\x1b[31mno"), 7, "refused to read cables: 500"),
        ((200, {"Content-Length": "900000000"}, b"{"), 5, "no answer"),
    ],
)
def test_answers_that_are_not_netboxs_are_refused(
    netbox: Served, tmp_path: Path, capsys: Said, answer: Any, code: int, text: str
) -> None:
    netbox.raw["cables"] = answer
    found, _, err = typed(capsys, "--out", tmp_path / "mylab")
    assert found == code and text in err and "\x1b[31m" not in err
    assert not (tmp_path / "mylab").exists()


def test_an_answer_has_a_largest_size(
    netbox: Served, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.verbs.netbox.MOST_BYTES", 1000)
    code, _, err = typed(capsys, "--out", tmp_path / "mylab")
    assert code == 5 and "the answer has more than" in err


def test_a_wrong_token_is_refused_in_netboxs_words(
    netbox: Served, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_NETBOX_TOKEN", "f" * 40)
    code, _, err = typed(capsys, "--out", tmp_path / "mylab")
    assert code == 7 and "403" in err and "f" * 40 not in err


def test_an_emulated_lab_is_never_changed(netbox: Served, tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "emulator.yml").write_text("")
    code, _, err = typed(capsys, "--out", tmp_path / "lab", "--write")
    assert code == 2 and "is an emulated lab" in err and netbox.asked == []


def test_filters_choose_devices_alone(netbox: Served, tmp_path: Path, capsys: Said) -> None:
    assert typed(capsys, "--out", tmp_path / "mylab", "--filter", "site=dc1")[0] == 0
    chosen = {name for _, name, given in netbox.asked if given.get("site") == "dc1"}
    assert chosen == {"devices"}
    code, _, err = typed(capsys, "--out", tmp_path / "mylab", "--filter", "limit=1")
    assert code == 2 and "does not choose devices" in err


def test_without_the_library_the_error_says_what_to_install(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynetbox", None)
    code, _, err = typed(
        capsys, "--out", tmp_path / "mylab", "--url", "http://127.0.0.1:1", "--token", TOKEN
    )
    assert code == 2 and "pip install 'optical-testbed[netbox]'" in err


def test_without_url_or_token_the_error_names_option_and_variable(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TESTBED_NETBOX_URL", raising=False)
    code, _, err = typed(capsys, "--out", tmp_path / "mylab")
    assert code == 2 and "--url is missing" in err and "TESTBED_NETBOX_URL" in err


@pytest.mark.long
@pytest.mark.timeout(900)  # NetBox's own development server makes some objects a second
def test_a_real_netbox_gives_the_same_fibres_and_takes_circuits(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TESTBED_TEST_NETBOX_URL and _TOKEN name a NetBox whose contents may change for the test."""
    needed()
    import pynetbox

    url, token = (os.environ.get(f"TESTBED_TEST_NETBOX_{key}", "") for key in ("URL", "TOKEN"))
    if not url or not token:
        pytest.skip(
            "a NetBox to change is not installed: TESTBED_TEST_NETBOX_URL and _TOKEN name one"
        )
    from orchestrator.verbs.netbox import NetBox, to_write

    monkeypatch.setenv("HOME", str(tmp_path))
    api, mark = pynetbox.api(url, token=token), "testbed-long-test"
    field = None
    try:
        populated(api, mark)
        field = api.extras.custom_fields.create(
            name="testbed_long_test", type="text", object_types=["dcim.cable"]
        )
        out = tmp_path / "mylab"
        code, said, err = typed(
            capsys, "--out", out, "--url", url, "--token", token, "--filter", f"site={mark}"
        )
        assert code == 0 and "7 fibres, 1 trunk; written" in said, err
        lab = load_lab(out)
        assert {str(port): str(f.enters) for port, f in lab.fibres.items()}["gpu01:p2"] == "ocs2:1"
        server = NetBox(url, token)
        cable = next(iter(api.dcim.cables.filter(site=mark)))
        server.write("testbed_long_test", {cable.id: "gpu01:p1->gpu02:p1"})
        fresh = dict(api.dcim.cables.get(cable.id).custom_fields)
        assert fresh == {**fresh, "testbed_long_test": "gpu01:p1->gpu02:p1"}
        assert to_write("testbed_long_test", {cable.id: None}, {cable.id: fresh}) == {
            cable.id: None
        }
    finally:
        emptied(api, mark)
        if field is not None:
            field.delete()
