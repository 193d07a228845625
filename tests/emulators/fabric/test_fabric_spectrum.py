"""Packets flow where spectrum does: labs of wavelength-selective switches, hosts in real
namespaces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from lxml import etree
from ncclient import manager

from emulators.generate.command import main
from emulators.inventory.config import read_config
from emulators.optics.light import edges_mhz
from tests.emulators.fabric.emulated import EmulatedLab, eventually

pytestmark = pytest.mark.lab

OTE = "http://www.lumentum.com/lumentum-ote-connection"
NETCONF = "urn:ietf:params:xml:ns:netconf:base:1.0"
CARD = "ne=1;chassis=1;card=1"
HOSTS = ("gpu01", "gpu02", "gpu03")


def write_lab(folder: Path, driver: str, **facts: object) -> Path:
    """Write a lab of three hosts on one device; `facts` go to emulator.yml."""
    inventory = folder / "inventory"
    wanted = [
        "--driver",
        driver,
        "--hosts",
        "3",
        "--free-ports",
        "--state",
        str(folder / "state"),
        "--out",
        str(inventory),
    ]
    assert main(wanted) == 0
    text = (inventory / "emulator.yml").read_text()
    more = "".join(f", {key}: {value}" for key, value in facts.items())
    (inventory / "emulator.yml").write_text(re.sub(r"(size: \w+)", rf"\1{more}", text))
    return inventory


@pytest.fixture(scope="module")
def roadm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    running = EmulatedLab(
        write_lab(tmp_path_factory.mktemp("roadm"), "lumentum-netconf", settle_s=0.05)
    )
    yield running
    assert running.stop() == 0, running.log.read_text()


@pytest.fixture(scope="module")
def waveshaper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    running = EmulatedLab(
        write_lab(tmp_path_factory.mktemp("waveshaper"), "waveshaper-http", settle_s=0.05)
    )
    yield running
    assert running.stop() == 0, running.log.read_text()


@contextmanager
def netconf(lab: EmulatedLab) -> Iterator[manager.Manager]:
    with manager.connect(
        host="127.0.0.1",
        port=read_config(lab.inventory).devices["wss1"].port,
        username="superuser",
        password="emulated",
        hostkey_verify=False,
        allow_agent=False,
        look_for_keys=False,
    ) as session:
        yield session


def connection(
    module: int, number: int, ends: tuple[int, int], host: int, attenuation_db: float = 0.0
) -> str:
    """Return the configuration of one connection for the slot of host number `host`."""
    low, high = (edge / 1000 for edge in edges_mhz(-280 + 16 * (host - 1), 4))
    return (
        f"<connection><dn>{CARD};module={module};connection={number}</dn><config>"
        f"<maintenance-state>in-service</maintenance-state><blocked>false</blocked>"
        f"<start-freq>{low:.1f}</start-freq><end-freq>{high:.1f}</end-freq><attenuation>{attenuation_db}</attenuation>"
        f"<input-port-reference>{CARD};port={ends[0]}</input-port-reference>"
        f"<output-port-reference>{CARD};port={ends[1]}</output-port-reference></config></connection>"
    )


def configure(session: manager.Manager, *connections: str) -> None:
    config = f'<connections xmlns="{OTE}">{"".join(connections)}</connections>'
    session.edit_config(
        target="running", config=f'<xc:config xmlns:xc="{NETCONF}">{config}</xc:config>'
    )


def powers(session: manager.Manager, number: int, module: int = 2) -> tuple[float, float]:
    """Return what a connection's channel monitors read, in and out."""
    reply = session.get(filter=("subtree", f'<connections xmlns="{OTE}"/>'))
    for node in etree.fromstring(reply.xml.encode()).iter(f"{{{OTE}}}connection"):
        if node.findtext(f"{{{OTE}}}dn") == f"{CARD};module={module};connection={number}":
            found = [float(leaf.text or "nan") for leaf in node.iter(f"{{{OTE}}}power")]
            return found[0], found[1]
    raise AssertionError(f"no connection {number} of module {module}")


@pytest.fixture
def dark(roadm: EmulatedLab) -> EmulatedLab:
    """The ROADM with no connections."""
    with netconf(roadm) as session:
        for module in (1, 2):
            session.dispatch(
                etree.fromstring(
                    f'<remove-all-connections xmlns="{OTE}"><dn>{CARD};module={module}</dn></remove-all-connections>'
                )
            )
    return roadm


def frame(text: bytes) -> bytes:
    return b"\xff" * 6 + b"\x02" * 6 + b"\x88\xb5" + text * 12


def test_frames_cross_the_multiplexer_the_trunk_and_the_demultiplexer(dark: EmulatedLab) -> None:
    with netconf(dark) as session:
        configure(session, *(connection(1, n, (4100 + n, 4201), n) for n in (1, 2, 3)))
        # the light is on the trunk and goes no further
        assert not any(dark.carrier(host, 1) for host in HOSTS)
        configure(session, *(connection(2, n, (5101, 5201 + n % 3), n) for n in (1, 2, 3)))
    assert eventually(lambda: all(dark.carrier(host, 1) for host in HOSTS))
    one, two, three = (dark.raw(host, 1) for host in HOSTS)
    try:
        assert eventually(lambda: one.send(frame(b"first")) > 0 and b"first" in two.recv(200))
        assert eventually(lambda: two.send(frame(b"second")) > 0 and b"second" in three.recv(200))
        one.send(frame(b"third"))
        assert b"third" in two.recv(200)
        with pytest.raises(TimeoutError):
            three.recv(200)
    finally:
        for sock in (one, two, three):
            sock.close()
    lit = dark.ask("status")["devices"]["wss1"]["lit"]
    assert ["4101", "4201", 191_325_000, 191_375_000] in lit


def test_a_slot_that_is_dropped_where_nobody_sends_it_lights_nobody(dark: EmulatedLab) -> None:
    with netconf(dark) as session:
        configure(session, connection(1, 1, (4101, 4201), 1), connection(2, 1, (5101, 5202), 3))
        assert powers(session, 1)[1] == -30.0
        configure(session, connection(2, 2, (5101, 5203), 1))
    assert eventually(lambda: dark.carrier("gpu03", 1))
    assert not dark.carrier("gpu02", 1)


def test_meters_behind_the_trunk_read_what_comes_through_it(dark: EmulatedLab) -> None:
    with netconf(dark) as session:
        configure(session, connection(1, 1, (4101, 4201), 1), connection(2, 1, (5101, 5202), 1))
        (_, sent), (arriving, leaving) = powers(session, 1, module=1), powers(session, 1)
        assert sent - 0.6 == pytest.approx(arriving, abs=2.2)  # two meters, each with its bias
        assert arriving - leaving == pytest.approx(4.0, abs=2.7)
        configure(session, connection(1, 1, (4101, 4201), 1, attenuation_db=10.0))
        assert powers(session, 1)[0] == pytest.approx(arriving - 10, abs=0.2)
        assert dark.carrier("gpu02", 1)
        assert dark.ask("fibre", name="t-wss1-1", cut=True) == {"ok": True, "cut": ["t-wss1-1"]}
        assert eventually(lambda: not dark.carrier("gpu02", 1))
        assert powers(session, 1) == (-30.0, -30.0)
        dark.ask("fibre", name="t-wss1-1", cut=False)
        assert eventually(lambda: dark.carrier("gpu02", 1))


def shape(lab: EmulatedLab, **profile: object) -> int:
    port = read_config(lab.inventory).devices["wss1"].port
    answer = httpx.post(f"http://127.0.0.1:{port}/waveshaper/loadprofile", json=profile, timeout=10)
    return int(answer.json()["rc"])


def rows(host: int, port: int) -> str:
    """Return the rows that bring the light of host number `host` to `port`; 0: to no receiver."""
    low, high = (edge // 1000 for edge in edges_mhz(-280 + 16 * (host - 1), 4))
    return "\n".join(f"{ghz / 1000:.3f}\t0.0\t0.0\t{port}" for ghz in range(low, high))


def test_of_all_light_in_a_coupler_the_switch_selects_one_transmitter_for_each_receiver(
    waveshaper: EmulatedLab,
) -> None:
    assert shape(waveshaper, type="blockall") == 0
    for host, port in ((1, 2), (2, 1), (3, 3)):
        assert shape(waveshaper, type="wsp", wsp=rows(host, port)) == 0
    assert eventually(lambda: all(waveshaper.carrier(host, 1) for host in HOSTS))
    seen = {
        host: waveshaper.ask("status")["hosts"][host]["ports"]["1"]["light_from"] for host in HOSTS
    }
    assert seen == {"gpu01": "gpu02:p1", "gpu02": "gpu01:p1", "gpu03": "gpu03:p1"}
    one, two, three = (waveshaper.raw(host, 1) for host in HOSTS)
    try:
        assert eventually(lambda: two.send(frame(b"mine")) > 0 and b"mine" in one.recv(200))
        three.send(frame(b"own"))
        assert b"own" in three.recv(200)
        with pytest.raises(TimeoutError):
            one.recv(200)
        assert shape(waveshaper, type="wsp", wsp=rows(2, 0)) == 0
        assert eventually(lambda: not waveshaper.carrier("gpu01", 1))
        assert waveshaper.carrier("gpu02", 1)
    finally:
        for sock in (one, two, three):
            sock.close()


def test_two_transmitters_at_one_receiver_are_dark_and_reported(waveshaper: EmulatedLab) -> None:
    assert shape(waveshaper, type="blockall") == 0
    # gpu01's slot and gpu02's
    assert shape(waveshaper, type="bandpass", port=2, center=191.40, bandwidth=0.2, attn=0) == 0
    assert not waveshaper.carrier("gpu02", 1)
    assert "gpu02:p1 receives light of gpu01:p1 and gpu02:p1 at once" in waveshaper.log.read_text()
    assert shape(waveshaper, type="bandpass", port=2, center=191.36, bandwidth=0.08, attn=0) == 0
    assert eventually(lambda: waveshaper.carrier("gpu02", 1))
