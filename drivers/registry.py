"""From the inventory's `driver:` to a device object.

A third party adds a driver by an entry point in its own distribution, without a change here:

    [project.entry-points."testbed.drivers"]
    acme-rest = "acme_testbed.driver:AcmeRest"

The class has `TRAITS` (its own numbers, each with its source), `OPTIONS` (option name -> meaning),
`EVIDENCE` (what it is based on) and takes a `DeviceConfig` and the `Traits` to use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

from drivers.api import CircuitSwitch, Evidence
from optics import BadFile, DeviceConfig, Traits, one_pattern

GROUP = "testbed.drivers"

_BUILT_IN: Mapping[str, str] = {
    "calient-rest": "drivers.calient_rest:CalientRest",
    "calient-tl1": "drivers.calient_tl1:CalientTl1",
    "dicon-mxs": "drivers.dicon_mxs:DiconMxs",
    "dicon-scpi": "drivers.dicon_scpi:DiconScpi",
    "exfo-scpi": "drivers.exfo_scpi:ExfoScpi",
    "finisar-serial": "drivers.finisar_serial:FinisarSerial",
    "glimmerglass-tl1": "drivers.glimmerglass_tl1:GlimmerglassTl1",
    "lumentum-netconf": "drivers.lumentum_netconf:LumentumNetconf",
    "openroadm-netconf": "drivers.openroadm_netconf:OpenroadmNetconf",
    "polatis-netconf": "drivers.polatis_netconf:PolatisNetconf",
    "polatis-restconf": "drivers.polatis_restconf:PolatisRestconf",
    "polatis-scpi": "drivers.polatis_scpi:PolatisScpi",
    "polatis-tl1": "drivers.polatis_tl1:PolatisTl1",
    "rome-cli": "drivers.rome_cli:RomeCli",
    "rotor": "drivers.rotor:Rotor",
    "santec-scpi": "drivers.santec_scpi:SantecScpi",
    "sonic-ocs": "drivers.sonic_ocs:SonicOcs",
    "telescent-cli": "drivers.telescent_cli:TelescentCli",
    "thorlabs-osw": "drivers.thorlabs_osw:ThorlabsOsw",
    "waveshaper-http": "drivers.waveshaper_http:WaveshaperHttp",
}


class Driver(Protocol):
    """A driver class."""

    TRAITS: Traits
    OPTIONS: Mapping[str, str]
    EVIDENCE: Evidence

    def __call__(self, config: DeviceConfig, traits: Traits) -> CircuitSwitch: ...


def known_drivers() -> tuple[str, ...]:
    """Names an inventory may use, third-party ones included."""
    return tuple(sorted({*_BUILT_IN, *_third_party()}))


def built_in_drivers() -> tuple[str, ...]:
    """Names of this project's own drivers."""
    return tuple(sorted(_BUILT_IN))


def driver_class(name: str) -> Driver:
    """Import and return the class of driver `name`. Raises: BadFile - no such driver, or a third
    party's cannot be imported.
    """
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return cast(Driver, getattr(import_module(module), attribute))
    entry = _third_party().get(name)
    if entry is None:
        raise BadFile(
            [
                f"driver: there is no {name!r}{_meant(name, known_drivers())}; known: {', '.join(known_drivers())}"
            ]
        )
    dist = entry.dist
    whose = f"{entry.value} of {f'{dist.name} {dist.version}' if dist is not None else 'an unknown distribution'}"
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:  # a third party's module may raise anything
        raise BadFile(
            [f"driver: {name!r} ({whose}) cannot be imported: {type(error).__name__}: {error}"]
        ) from error
    if missing := [word for word in ("TRAITS", "OPTIONS") if not hasattr(found, word)]:
        raise BadFile([f"driver: {name!r} ({whose}) has no {' and no '.join(missing)}"])
    return cast(Driver, found)


def evidence(name: str) -> Evidence:
    """The evidence behind driver `name`; of a third-party driver that states none, only its name.
    Raises: BadFile.
    """
    return getattr(driver_class(name), "EVIDENCE", None) or Evidence(name)


def open_device(config: DeviceConfig) -> CircuitSwitch:
    """Return the device of `config`; nothing is sent before its first request.

    Raises: BadFile - unknown driver, trait or option, or a value of the wrong kind; all of the
    device's problems at once.
    """
    where = f"devices.{config.name}"
    try:
        driver = driver_class(config.driver)
    except BadFile as error:
        raise BadFile([f"{where}.{problem}" for problem in error.problems]) from error
    problems = [
        f"{where}.options.{key}: {config.driver} has no such option{_meant(key, driver.OPTIONS)}"
        for key in config.options
        if key not in driver.OPTIONS
    ]
    traits, wrong = _traits(driver.TRAITS, config)
    problems += [f"{where}.traits.{text}" for text in wrong]
    if problems:
        raise BadFile(problems)
    try:
        return driver(config, traits)
    except BadFile as error:
        raise BadFile(
            [f"{where}: {problem.removeprefix(config.name + ': ')}" for problem in error.problems]
        ) from None
    except ValueError as error:
        raise BadFile([f"{where}.options: {error}"]) from error


def driver_traits(config: DeviceConfig) -> Traits:
    """The numbers to plan with: the driver's own at the device's time scale, else the inventory's.
    Raises: BadFile.
    """
    traits, wrong = _traits(driver_class(config.driver).TRAITS, config)
    if wrong:
        raise BadFile([f"devices.{config.name}.traits.{text}" for text in wrong])
    return traits


def _third_party() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _traits(own: Traits, config: DeviceConfig) -> tuple[Traits, list[str]]:
    overrides: Mapping[str, Any] = config.traits
    names = [
        field.name for field in fields(Traits) if field.name not in ("spectral", "stored_dwell_s")
    ]  # properties of the device, not figures of its performance
    own = replace(own, settle_s=own.settle_s / config.time_scale)
    wrong = [f"{key}: no such trait{_meant(key, names)}" for key in overrides if key not in names]
    good: dict[str, Any] = {}
    for key, value in overrides.items():
        if key in names:
            if fault := _fault(key, value):
                wrong.append(f"{key}: {fault}, not {value!r}")
            else:
                good[key] = tuple((a, b) for a, b in value) if key == "directions" else value
    return replace(own, **good), wrong


def _fault(key: str, value: object) -> str:
    """The problem with a trait's value, empty if there is none."""
    if key == "at_once":
        fine = value is None or (
            isinstance(value, int) and not isinstance(value, bool) and value >= 1
        )
        return "" if fine else "a whole number of at least 1, or null for no limit"
    if key == "directions":
        pairs = isinstance(value, list | tuple) and all(
            isinstance(path, list | tuple) and len(path) == 2 for path in value
        )
        fine = pairs and all(_pattern(a, b) for a, b in cast(list[list[object]], value))
        return "" if fine else "pairs of patterns of port labels"
    if key in ("settle_s", "insertion_loss_db", "meter_db"):
        number = (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        )
        fine = number and cast(float, value) >= 0 and not (key == "settle_s" and value == 0)
        return "" if fine else ("seconds above 0" if key == "settle_s" else "decibel, 0 or more")
    return "" if isinstance(value, bool) else "true or false"


def _pattern(ingress: object, egress: object) -> bool:
    try:
        return (
            isinstance(ingress, str)
            and isinstance(egress, str)
            and bool(re.compile(one_pattern(ingress, egress)))
        )
    except re.error:
        return False


def _meant(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
