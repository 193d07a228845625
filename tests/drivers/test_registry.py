"""From the inventory's words to a device, and what is said when they are wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest

from drivers import registry
from drivers.registry import driver_traits, known_drivers, open_device
from optics import BadFile, DeviceConfig, Traits


def config(
    driver: str = "polatis-scpi", address: str = "tcp://127.0.0.1:5025", **more: object
) -> DeviceConfig:
    return DeviceConfig("ocs1", driver, address, **more)  # type: ignore[arg-type]


def problems(bad: DeviceConfig) -> list[str]:
    with pytest.raises(BadFile) as caught:
        open_device(bad)
    return caught.value.problems


def test_an_unknown_driver_is_answered_with_the_nearest_name() -> None:
    (text,) = problems(config("polatis-spci"))
    assert text.startswith(
        "devices.ocs1.driver: there is no 'polatis-spci'; did you mean polatis-scpi?"
    )


def test_traits_come_from_the_driver_and_are_overridden_by_the_inventory() -> None:
    assert driver_traits(config()).settle_s == 0.05
    assert driver_traits(config("calient-tl1")).settle_s == 0.2
    assert open_device(config(traits={"settle_s": 0.025, "latching": True})).traits == Traits(
        settle_s=0.025, latching=True, meter_db=1.0
    )


def test_a_matrix_is_made_a_bank_of_small_switches_by_its_directions() -> None:
    traits = open_device(config(traits={"directions": [["1", "61|73"], ["13|25", "49"]]})).traits
    assert (
        traits.joins("1", "73")
        and traits.joins("25", "49")
        and not traits.joins("1", "49")
        and not traits.joins("11", "61")
    )
    for value in (["1"], [["1", "("]], [["1", 2]], "1"):
        assert (
            "directions: pairs of patterns of port labels"
            in problems(config(traits={"directions": value}))[0]
        )


def test_a_way_may_say_that_both_ports_belong_to_the_same_module() -> None:
    traits = open_device(config(traits={"directions": [["([0-9]+)\\.in", "\\1\\.[0-9]+"]]})).traits
    assert (
        traits.joins("12.in", "12.3")
        and not traits.joins("12.in", "1.3")
        and not traits.joins("12.3", "12.in")
    )


def test_every_wrong_trait_and_option_is_named_at_once() -> None:
    found = problems(
        config(
            traits={"setle_s": 1, "settle_s": -1, "at_once": 0, "latching": "yes"},
            options={"pace": "0.1"},
        )
    )
    assert found == [
        "devices.ocs1.options.pace: polatis-scpi has no such option; did you mean pace_s?",
        "devices.ocs1.traits.setle_s: no such trait; did you mean settle_s?",
        "devices.ocs1.traits.settle_s: seconds above 0, not -1",
        "devices.ocs1.traits.at_once: a whole number of at least 1, or null for no limit, not 0",
        "devices.ocs1.traits.latching: true or false, not 'yes'",
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "0.05", None])
def test_a_settling_time_is_a_finite_number(value: object) -> None:
    assert "settle_s: seconds above 0" in problems(config(traits={"settle_s": value}))[0]


def test_an_option_of_the_wrong_kind_is_named() -> None:
    assert problems(config(options={"pace_s": "quick"})) == [
        "devices.ocs1.options: could not convert string to float: 'quick'"
    ]
    assert (
        "letters, digits and _"
        in problems(config("calient-tl1", options={"group": "A;DLT-CRS-ALL:::"}))[0]
    )


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1:5025",
            "tcp://127.0.0.1",
            "tcp://:5025",
            "tcp://h:5025/x",
            "tcp://h:99999",
            "udp://h:1",
            "",
        ),
        *(
            "serial://ttyS0",
            "serial:///dev/ttyS0?bauds=1",
            "serial:///dev/ttyS0?baud=fast",
            "visa://",
        ),
    ],
)
def test_an_address_of_no_known_form_is_refused_with_the_known_ones(address: str) -> None:
    (text,) = problems(config(address=address))
    assert text.startswith("devices.ocs1: address ")
    assert "known forms: tcp://host:port, " in text


class Acme:
    TRAITS = Traits(settle_s=1.0)
    OPTIONS: ClassVar[Mapping[str, str]] = {"colour": "of the box"}

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        self.name, self.traits = config.name, traits


def test_a_third_party_driver_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        EntryPoint("acme-rest", f"{__name__}:Acme", registry.GROUP),
        EntryPoint("broken", "no_such_module_anywhere:X", registry.GROUP),
        EntryPoint("bare", "builtins:object", registry.GROUP),
    ]
    monkeypatch.setattr(
        registry, "entry_points", lambda group: entries if group == registry.GROUP else []
    )
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert known_drivers() == tuple(sorted({"acme-rest", "bare", "broken", *registry._BUILT_IN}))
    assert open_device(config("acme-rest", options={"colour": "red"})).traits.settle_s == 1.0
    assert "cannot be imported: ModuleNotFoundError" in problems(config("broken"))[0]
    assert "has no TRAITS and no OPTIONS" in problems(config("bare"))[0]


@pytest.mark.parametrize("code", ["import no_such_module_anywhere", "raise SystemExit(3)"])
def test_what_cannot_be_imported_is_named_with_its_distribution(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "acme_bad-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-bad\nVersion: 1.2\n")
    groups = ("testbed.drivers", "acme_bad:Acme"), ("testbed.emulators", "acme_bad")
    (info / "entry_points.txt").write_text(
        "".join(f"[{group}]\nacme-bad = {value}\n" for group, value in groups)
    )
    (tmp_path / "acme_bad.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = "of acme-bad 1.2) cannot be imported: " + (
        "SystemExit: 3" if "Exit" in code else "ModuleNotFoundError"
    )
    assert answer in problems(config("acme-bad"))[0]
    argv = [
        sys.executable,
        "-P",
        "-c",
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import emulators.devices.families as f; f.main()",
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert answer in done.stderr and "polatis-scpi" in done.stdout, (
        "the other families are there all the same"
    )


def test_the_registry_imports_no_driver_and_no_heavy_library_before_it_is_asked() -> None:
    code = (
        "import sys, drivers.registry as r; r.known_drivers();"
        "heavy = {'pyvisa', 'serial', 'drivers.polatis_scpi', 'drivers.calient_tl1'} & set(sys.modules);"
        "from optics import DeviceConfig; r.open_device(DeviceConfig('a', 'polatis-scpi', 'tcp://h:1'));"
        "r.open_device(DeviceConfig('a', 'polatis-scpi', 'visa://ASRL1::INSTR'));"
        "heavy |= {'pyvisa', 'serial', 'drivers.calient_tl1'} & set(sys.modules); print(sorted(heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
