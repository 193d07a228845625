"""Every family of devices that is emulated: how each is built, served and wired. One line per
family here, its facts next to its dialect.
"""

from __future__ import annotations

import difflib
import inspect
import json
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

from emulators.devices.dialects.base import AnyDialect
from emulators.devices.family import Family, Labels

GROUP = "testbed.emulators"
_BUILT_IN: Mapping[str, str] = {
    "calient-rest": "emulators.devices.dialects.calient_rest",
    "calient-tl1": "emulators.devices.dialects.calient_tl1",
    "dicon-mxs": "emulators.devices.dialects.dicon_mxs",
    "dicon-scpi": "emulators.devices.dialects.dicon_scpi",
    "exfo-scpi": "emulators.devices.dialects.exfo_scpi",
    "glimmerglass-tl1": "emulators.devices.dialects.glimmerglass_tl1",
    "finisar-serial": "emulators.devices.dialects.finisar_serial",
    "lumentum-netconf": "emulators.devices.dialects.lumentum_netconf",
    "openroadm-netconf": "emulators.devices.dialects.openroadm_netconf",
    "polatis-netconf": "emulators.devices.dialects.polatis_netconf",
    "polatis-restconf": "emulators.devices.dialects.polatis_restconf",
    "polatis-scpi": "emulators.devices.dialects.polatis_scpi",
    "rome-cli": "emulators.devices.dialects.rome_cli",
    "rotor": "emulators.devices.dialects.rotor",
    "santec-scpi": "emulators.devices.dialects.santec_scpi",
    "sonic-ocs": "emulators.devices.dialects.sonic_ocs",
    "waveshaper-http": "emulators.devices.dialects.waveshaper_http",
    "telescent-cli": "emulators.devices.dialects.telescent_cli",
    "polatis-tl1": "emulators.devices.dialects.polatis_tl1",
    "thorlabs-osw": "emulators.devices.dialects.thorlabs_osw",
}


class _Where(Mapping[str, str]):
    """The families of this package, and those of third parties, which are loaded only on
    request.
    """

    @cached_property
    def _all(self) -> Mapping[str, str]:
        # some 40 ms, which a lab of built-in families alone need not wait for
        from importlib.metadata import entry_points

        return {**{entry.name: entry.value for entry in entry_points(group=GROUP)}, **_BUILT_IN}

    def __getitem__(self, driver: str) -> str:
        return _BUILT_IN[driver] if driver in _BUILT_IN else self._all[driver]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


WHERE = _Where()
"""Driver name -> the module whose FAMILY describes its emulator; a third party adds its own by an
entry point of the group GROUP, whose name is the driver's and whose value is such a module."""


def family(driver: str) -> Family:
    """Return the family of `driver`. Raises: KeyError - it has no emulator. ValueError - a third
    party's cannot be imported.
    """
    where = WHERE[driver]
    try:
        found: Family = import_module(where).FAMILY
    except (Exception, SystemExit) as error:  # a third party's module may raise anything
        if driver in _BUILT_IN:
            raise
        text = f"the emulator of {driver} ({where} of {_distribution(driver)}) cannot be imported"
        raise ValueError(f"{text}: {type(error).__name__}: {error}") from error
    return found


def _distribution(driver: str) -> str:
    from importlib.metadata import entry_points

    found = next((entry.dist for entry in entry_points(group=GROUP) if entry.name == driver), None)
    return f"{found.name} {found.version}" if found is not None else "an unknown distribution"


def device_from_config(
    name: str,
    driver: str,
    overrides: Mapping[str, Any] | None = None,
    seed: int = 0,
    *,
    time_scale: float = 1.0,
) -> tuple[Any, AnyDialect]:
    """Return plant and dialect of a device as an inventory names it.

    overrides: settle_s, bulk_settle_s (s, of the real device), size ("16x16"), ports (explicit
    labels, of both sides or {in: labels, out: labels}, or a style's word), preset, faults, los_dbm
    and every keyword of the family's dialect. time_scale: the device's times are divided by it.
    Raises ValueError: unknown driver, unknown key, bad value.
    """
    if driver not in WHERE:
        raise ValueError(
            f"{name}: no emulator for driver {driver!r}; there are {', '.join(sorted(WHERE))}"
        )
    kind = family(driver)
    given = dict(overrides or {})
    for key in given:
        if key not in kind.settings:
            near = difflib.get_close_matches(key, sorted(kind.settings), 1)
            raise ValueError(
                f"{name}: unknown key {key!r}" + (f"; did you mean {near[0]}?" if near else "")
            )
    preset, faults = given.pop("preset", []), given.pop("faults", [])
    inputs, outputs = _size(name, given.pop("size", kind.size))
    if kind.square and inputs != outputs:
        raise ValueError(f"{name}: size: a duplex faceplate is square")
    ports = given.pop("ports", None)
    if isinstance(ports, str):
        if ports not in kind.styles:
            raise ValueError(
                f"{name}: ports: wanted {' or '.join(['a list of labels', *kind.styles])}, seen {ports!r}"
            )
        ports = kind.styles[ports](inputs)
    ingress, egress = _labels(name, ports) if ports else kind.faceplate(inputs, outputs)
    bulk_s = given.pop("bulk_settle_s", kind.bulk_settle_s)
    more = {"los_dbm": float(given.pop("los_dbm"))} if "los_dbm" in given else {}
    plant = kind.plant(
        name,
        ingress,
        egress,
        float(given.pop("settle_s", kind.settle_s)) / time_scale,
        seed,
        bulk_settle_s=None if bulk_s is None else float(bulk_s) / time_scale,
        **more,
    )
    takes = inspect.signature(kind.dialect).parameters
    if "time_scale" in takes:
        given.setdefault("time_scale", time_scale)
    if "epoch_s" in takes:  # wall clock (s) at second 0 of the server's
        given.setdefault("epoch_s", time.time() - time.monotonic())
    dialect = kind.dialect(plant, seed=seed, **given)
    for row in preset:
        kind.preset(dialect, row)
    for spec in faults:
        dialect.inject(0.0, **dict(spec))
    return plant, dialect


def _labels(name: str, ports: object) -> tuple[Labels, Labels]:
    ingress, egress = (
        (ports.get("in"), ports.get("out")) if isinstance(ports, Mapping) else (ports, ports)
    )
    if not (isinstance(ingress, list | tuple) and isinstance(egress, list | tuple)):
        raise ValueError(
            f"{name}: ports: wanted labels, or {{in: labels, out: labels}}, seen {ports!r}"
        )
    return tuple(str(port) for port in ingress), tuple(str(port) for port in egress)


def _size(name: str, text: object) -> tuple[int, int]:
    parts = str(text).lower().split("x")
    if len(parts) != 2 or not all(p.isdecimal() and int(p) > 0 for p in parts):
        raise ValueError(f"{name}: size: wanted such as 16x16, seen {text!r}")
    return int(parts[0]), int(parts[1])


def main() -> int:
    """Print the facts of every family as one JSON object, for programs that write inventories; of
    what is broken why, as errors.
    """
    found = {}
    for driver in sorted(WHERE):
        try:
            found[driver] = family(driver)
        except ValueError as error:  # nobody may need that one
            print(error, file=sys.stderr)
    print(
        json.dumps(
            {
                driver: {
                    "schemes": kind.schemes,
                    "login": kind.login,
                    "time_scale": kind.time_scale,
                    "size": kind.size,
                    "quick": dict(kind.quick),
                }
                for driver, kind in found.items()
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
