"""A ROADM-20 as NETCONF messages: connections, overlap, amplifiers, powers."""

from __future__ import annotations

import re

import pytest

from emulators.devices.families import device_from_config
from tests.emulators.devices.bench import Bench

OTE = "http://www.lumentum.com/lumentum-ote-connection"
EDFA = "http://www.lumentum.com/lumentum-ote-edfa"
BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"
CARD = "ne=1;chassis=1;card=1"
FIRST = ("4101", "4201", 191_325_000, 191_375_000)


class Roadm(Bench):
    """base:1.0, one message after the other."""

    def __init__(self, **overrides: object) -> None:
        super().__init__("lumentum-netconf", transport="netconf", **overrides)
        offered = BASE.replace("xml:ns:netconf", "netconf")
        hello = (
            f'<hello xmlns="{BASE}"><capabilities><capability>{offered}</capability></capabilities>'
        )
        self.send(f"{hello}</hello>", end="]]>]]>")

    def rpc(self, body: str) -> str:
        """Return the reply, whenever it comes."""
        reply = self.send(f'<rpc message-id="1" xmlns="{BASE}">{body}</rpc>', end="]]>]]>")
        return reply or self.wait(10.0)

    def edit(self, *nodes: str, space: str = OTE, top: str = "connections", extra: str = "") -> str:
        config = f'<config><{top} xmlns="{space}">{"".join(nodes)}</{top}></config>'
        return self.rpc(f"<edit-config><target><running/></target>{extra}{config}</edit-config>")

    def delete(self, module: int, number: int) -> str:
        return self.rpc(
            f'<delete-connection xmlns="{OTE}"><dn>{CARD};module={module};connection={number}</dn></delete-connection>'
        )

    def powers(self) -> list[float]:
        reply = self.rpc(f'<get><filter type="subtree"><connections xmlns="{OTE}"/></filter></get>')
        return [float(found) for found in re.findall(r"<power>([-\d.]+)</power>", reply)]


def connection(number: int = 1, module: int = 1, **changes: str) -> str:
    leaves = {
        "maintenance-state": "in-service",
        "blocked": "false",
        "start-freq": "191325.0",
        "end-freq": "191375.0",
        "attenuation": "0.0",
        "input-port-reference": f"{CARD};port=410{number}" if module == 1 else f"{CARD};port=5101",
        "output-port-reference": f"{CARD};port=4201" if module == 1 else f"{CARD};port=520{number}",
        "custom-name": "CH1",
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    config = "".join(f"<{name}>{value}</{name}>" for name, value in leaves.items())
    return f"<connection><dn>{CARD};module={module};connection={number}</dn><config>{config}</config></connection>"


def edfa(number: int, **leaves: str) -> str:
    config = "".join(
        f"<{name.replace('_', '-')}>{value}</{name.replace('_', '-')}>"
        for name, value in leaves.items()
    )
    return f"<edfa><dn>{CARD};edfa={number}</dn><config>{config}</config></edfa>"


@pytest.fixture
def roadm() -> Roadm:
    return Roadm()


def test_a_connection_is_ok_when_its_light_has_settled(roadm: Roadm) -> None:
    message = f'<rpc message-id="1" xmlns="{BASE}"><edit-config><target><running/></target>'
    message += f'<config><connections xmlns="{OTE}">{connection()}</connections></config></edit-config></rpc>'
    assert roadm.send(message, end="]]>]]>") == ""
    assert roadm.wait(0.99) == ""
    assert "<ok/>" in roadm.wait(0.02)
    assert roadm.light() == {FIRST}
    assert roadm.plant.writes == 1


def test_until_it_has_settled_a_connection_has_no_state(roadm: Roadm) -> None:
    roadm.send(
        f'<rpc message-id="1" xmlns="{BASE}"><edit-config><target><running/></target><config>'
        f'<connections xmlns="{OTE}">{connection()}</connections></config></edit-config></rpc>',
        end="]]>]]>",
    )
    first, roadm.session = roadm.session, roadm.open()
    assert first is not roadm.session
    roadm.send(
        f'<hello xmlns="{BASE}"><capabilities><capability>urn:ietf:params:netconf:base:1.0</capability></capabilities></hello>',
        end="]]>]]>",
    )
    assert roadm.powers() == []
    roadm.wait(1.1)
    into, out = roadm.powers()
    assert into - out == pytest.approx(4.0, abs=2.6)


def test_overlapping_spectrum_is_refused_until_the_old_connection_is_deleted(roadm: Roadm) -> None:
    assert "<ok/>" in roadm.edit(connection(1))
    reply = roadm.edit(connection(2, start_freq="191350.0", end_freq="191400.0"))
    assert "data-exists" in reply
    assert "connection=2: spectrum overlaps" in reply
    assert len(roadm.plant.violations) == 1
    assert roadm.light() == {FIRST}
    assert "<ok/>" in roadm.edit(connection(2, start_freq="191375.0", end_freq="191425.0"))
    assert "<ok/>" in roadm.delete(1, 1)
    assert roadm.light() == {("4102", "4201", 191_375_000, 191_425_000)}
    assert "data-missing" in roadm.delete(1, 1)


def test_two_tenants_have_one_wavelength_of_the_common_port_in_turn_and_two_wavelengths_at_once(
    roadm: Roadm,
) -> None:
    second = {"start_freq": "191425.0", "end_freq": "191475.0"}
    assert "<ok/>" in roadm.edit(connection(1), connection(2, **second))
    assert len(roadm.light()) == 2
    assert "<ok/>" in roadm.delete(1, 2)
    assert "spectrum overlaps" in roadm.edit(
        connection(2, start_freq="191325.0", end_freq="191375.0")
    )
    assert roadm.light() == {FIRST}
    assert "<ok/>" in roadm.delete(1, 1)
    assert "<ok/>" in roadm.edit(connection(2, start_freq="191325.0", end_freq="191375.0"))
    assert roadm.light() == {("4102", "4201", 191_325_000, 191_375_000)}


def test_the_same_spectrum_is_free_in_the_other_module(roadm: Roadm) -> None:
    assert "<ok/>" in roadm.edit(connection(1), connection(1, module=2))
    assert roadm.light() == {FIRST, ("5101", "5201", 191_325_000, 191_375_000)}


def test_all_connections_of_a_module_are_removed_at_once(roadm: Roadm) -> None:
    roadm.edit(connection(1), connection(1, module=2))
    assert "<ok/>" in roadm.rpc(
        f'<remove-all-connections xmlns="{OTE}"><dn>{CARD};module=1</dn></remove-all-connections>'
    )
    assert {path[0] for path in roadm.light()} == {"5101"}


def test_edit_config_neither_deletes_nor_moves_what_is_in_service(roadm: Roadm) -> None:
    roadm.edit(connection(1))
    lost = f'<connection xmlns:nc="{BASE}" nc:operation="delete"><dn>{CARD};module=1;connection=1</dn></connection>'
    assert "use delete-connection" in roadm.edit(lost)
    assert "use delete-connection" in roadm.edit(
        connection(2, start_freq="192000.0", end_freq="192050.0"),
        extra="<default-operation>replace</default-operation>",
    )
    assert "in-service" in roadm.edit(connection(1, start_freq="192000.0", end_freq="192050.0"))
    assert roadm.light() == {FIRST}
    assert "<ok/>" in roadm.edit(connection(1, maintenance_state="out-of-service"))
    assert roadm.light() == set()
    assert "<ok/>" in roadm.edit(
        connection(
            1, maintenance_state="out-of-service", start_freq="192000.0", end_freq="192050.0"
        )
    )
    assert "<ok/>" in roadm.edit(connection(1, start_freq="192000.0", end_freq="192050.0"))
    assert roadm.light() == {("4101", "4201", 192_000_000, 192_050_000)}


def test_attenuation_changes_in_service_and_the_light_stays(roadm: Roadm) -> None:
    roadm.edit(connection(1))
    before = roadm.powers()[1]
    since = roadm.plant.since(FIRST)
    assert "<ok/>" in roadm.edit(connection(1, attenuation="6.0"))
    assert roadm.plant.since(FIRST) == since
    assert roadm.powers()[1] == pytest.approx(before - 6.0, abs=0.2)
    assert "<ok/>" in roadm.edit(connection(1, blocked="true"))
    assert roadm.powers() == [-30.0, -30.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start_freq": "191300.0"}, "end-freq"),
        ({"end_freq": "191325.0"}, "end-freq"),
        ({"start_freq": "1e5"}, "start-freq"),
        ({"attenuation": "25.1"}, "attenuation"),
        ({"attenuation": "-1"}, "attenuation"),
        ({"blocked": "maybe"}, "blocked"),
        ({"maintenance_state": "on"}, "maintenance-state"),
        ({"input_port_reference": f"{CARD};port=5101"}, "output-port-reference"),
        ({"output_port_reference": f"{CARD};port=5201"}, "output-port-reference"),
        ({"input_port_reference": "4101"}, "input-port-reference"),
    ],
)
def test_a_value_that_cannot_be_is_named_and_nothing_changes(
    roadm: Roadm, changes: dict[str, str], message: str
) -> None:
    reply = roadm.edit(connection(1, **changes))
    assert "invalid-value" in reply
    assert f"<bad-element>{message}</bad-element>" in reply
    assert roadm.light() == set()
    assert "191325.0" not in roadm.rpc("<get-config><source><running/></source></get-config>")


def test_an_amplifier_is_configured_out_of_service_and_lets_no_light_through_then(
    roadm: Roadm,
) -> None:
    roadm.edit(connection(1), connection(1, module=2))
    assert "in-service" in roadm.edit(
        edfa(1, maintenance_state="in-service", target_gain="12.0"), space=EDFA, top="edfas"
    )
    assert "<ok/>" in roadm.edit(
        edfa(1, maintenance_state="out-of-service"), space=EDFA, top="edfas"
    )
    assert {path[0] for path in roadm.light()} == {"5101"}
    assert "<ok/>" in roadm.edit(edfa(1, target_gain="12.0"), space=EDFA, top="edfas")
    assert "<ok/>" in roadm.edit(edfa(1, maintenance_state="in-service"), space=EDFA, top="edfas")
    assert roadm.light() == {FIRST, ("5101", "5201", 191_325_000, 191_375_000)}


def test_an_amplifier_is_read_as_public_clients_read_it_byte_by_byte() -> None:
    """They look for the names with their prefix, and for no namespace: the bytes have to be
    these.
    """
    roadm = Roadm(preset=[[1, 1, "4101", "4201", 191325.0, 191375.0, 2.0]])
    reply = roadm.rpc(
        f'<get><filter><edfas xmlns="{EDFA}" xmlns:lotee="{EDFA}"></edfas></filter></get>'
    )
    plain = re.sub(r' xmlns(:lotee)?="[^"]*"', "", reply)
    leaves = (
        "<lotee:maintenance-state>in-service</lotee:maintenance-state><lotee:control-mode>constant-gain</lotee:control-mode>"
        "<lotee:gain-switch-mode>low-gain</lotee:gain-switch-mode><lotee:target-gain>0.0</lotee:target-gain>"
        "<lotee:target-power>0.0</lotee:target-power><lotee:target-gain-tilt>0.0</lotee:target-gain-tilt>"
        "<lotee:los-shutdown>true</lotee:los-shutdown><lotee:optical-loo-threshold>-50.0</lotee:optical-loo-threshold>"
    )
    (dbm,) = set(re.findall(r"edfa=1.*?<input-power>([-.\d]+)</input-power>", plain))
    assert -30.0 < float(dbm) < 0.0
    assert (
        f"<edfa><dn>{CARD};edfa=1</dn><config>{leaves}</config><state><operational-state>enabled</operational-state>"
        f"<input-power>{dbm}</input-power><output-power>{dbm}</output-power><measured-gain>0.00</measured-gain>"
        f"<voas><voa><voa-input-power>{dbm}</voa-input-power><voa-output-power>{dbm}</voa-output-power>"
        "<voa-attentuation>0.00</voa-attentuation></voa></voas></state></edfa>"
    ) in plain
    assert f"<edfa><dn>{CARD};edfa=2</dn><config>{leaves}</config><state>" in plain


def test_an_amplifier_is_put_into_another_mode_as_a_public_client_does_it(roadm: Roadm) -> None:
    assert "<ok/>" in roadm.edit(
        edfa(2, maintenance_state="out-of-service"), space=EDFA, top="edfas"
    )
    modes = {
        "control_mode": "constant-power",
        "gain_switch_mode": "low-gain",
        "target_power": "-10.0",
        "target_gain_tilt": "0.0",
    }
    assert "<ok/>" in roadm.edit(
        edfa(2, maintenance_state="in-service", **modes), space=EDFA, top="edfas"
    )
    assert "<ok/>" in roadm.edit(
        edfa(2, maintenance_state="out-of-service"), space=EDFA, top="edfas"
    )
    assert "<ok/>" in roadm.edit(
        edfa(2, maintenance_state="in-service", los_shutdown="false"), space=EDFA, top="edfas"
    )
    reply = roadm.rpc(f'<get><filter><edfas xmlns="{EDFA}"/></filter></get>')
    for lines in (
        ("control-mode", "constant-power"),
        ("target-power", "-10.0"),
        ("los-shutdown", "false"),
    ):
        assert re.search(rf"lotee:{lines[0]}[^>]*>{lines[1]}<", reply)


def test_where_amplifiers_go_first_a_module_in_service_is_not_changed() -> None:
    roadm = Roadm(edfa_first=True)
    assert "edfa=1: in-service" in roadm.edit(connection(1))
    roadm.edit(edfa(1, maintenance_state="out-of-service"), space=EDFA, top="edfas")
    assert "<ok/>" in roadm.edit(connection(1))
    assert roadm.light() == set()
    roadm.edit(edfa(1, maintenance_state="in-service"), space=EDFA, top="edfas")
    assert roadm.light() == {FIRST}
    assert "edfa=1: in-service" in roadm.delete(1, 1)


def test_faults_of_ports_are_refusals(roadm: Roadm) -> None:
    roadm.dialect.inject(roadm.now, "stuck-port", port="4101")
    assert "port 4101 failed" in roadm.edit(connection(1))
    roadm.dialect.inject(roadm.now, "port-locked", port="4102")
    assert "locked by bench2" in roadm.edit(connection(2))


def test_the_running_configuration_comes_back_with_the_power_or_does_not() -> None:
    for keep in (True, False):
        roadm = Roadm(preset=[[1, 1, "4101", "4201", 191325.0, 191375.0, 2.0]])
        assert roadm.light() == {FIRST}
        roadm.dialect.inject(roadm.now, "reboot-keep" if keep else "reboot-lose")
        assert roadm.light() == set()
        roadm.wait(3.0)
        assert roadm.light() == ({FIRST} if keep else set())


def test_a_roadm_comes_in_one_size() -> None:
    with pytest.raises(ValueError, match="21x21"):
        device_from_config("wss1", "lumentum-netconf", {"size": "4x4"})
