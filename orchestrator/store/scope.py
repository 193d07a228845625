"""The scope of a lock: hosts, ports of devices, whole devices, the plans of owners, or everything.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optics import DeviceName, HostName, Port, Setting, Usage
from optics.plain import did_you_mean, natural, summary
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.port_names import no_fibre


@dataclass(frozen=True, slots=True)
class Scope:
    """Hosts, device ports and whole devices. A device covers all of its ports; `everything` covers
    the whole lab.

    owners: those whose plan is locked, whatever it uses: at most one run changes the plan of an
    owner, or makes the first one.
    """

    hosts: frozenset[HostName] = frozenset()
    ports: frozenset[Port] = frozenset()
    devices: frozenset[DeviceName] = frozenset()
    everything: bool = False
    owners: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.everything or self.hosts or self.ports or self.devices or self.owners)

    def __or__(self, other: Scope) -> Scope:
        """The union."""
        return Scope(
            self.hosts | other.hosts,
            self.ports | other.ports,
            self.devices | other.devices,
            self.everything or other.everything,
            self.owners | other.owners,
        )

    def __and__(self, other: Scope) -> Scope:
        """The intersection."""
        if self.everything or other.everything:
            return other if self.everything else self
        ours = frozenset(p for p in self.ports if p in other.ports or p.device in other.devices)
        theirs = frozenset(p for p in other.ports if p.device in self.devices)
        return Scope(
            self.hosts & other.hosts,
            ours | theirs,
            self.devices & other.devices,
            owners=self.owners & other.owners,
        )

    def overlaps(self, other: Scope) -> bool:
        """Whether the two scopes overlap."""
        return bool(self & other)

    def covers(self, other: Scope) -> bool:
        """Whether `other` is part of this."""
        if self.everything:
            return True
        ports = all(p in self.ports or p.device in self.devices for p in other.ports)
        rest = (
            other.hosts <= self.hosts
            and other.devices <= self.devices
            and other.owners <= self.owners
        )
        return not other.everything and rest and ports

    def __str__(self) -> str:
        if self.everything:
            return "the whole lab"
        parts = [
            *(f"{owner}'s plan" for owner in sorted(self.owners)),
            _some(self.hosts, 6),
            _some(self.devices, 6),
        ]
        labels: dict[DeviceName, list[str]] = {}
        for port in sorted(self.ports, key=lambda p: (natural(p.device), natural(p.label))):
            labels.setdefault(port.device, []).append(port.label)
        parts += [f"{device}:{ranges(found)}" for device, found in labels.items()]
        return ", ".join(filter(None, parts)) or "nothing"

    def to_data(self) -> dict[str, Any]:
        """The scope as JSON; `scope_of_data` reads it."""
        return {
            "everything": self.everything,
            "hosts": sorted(self.hosts),
            "devices": sorted(self.devices),
            "ports": [[p.device, p.label] for p in sorted(self.ports)],
            "owners": sorted(self.owners),
        }


WHOLE = Scope(everything=True)


def scope_of_data(data: Mapping[str, Any]) -> Scope:
    """The scope of a result of `Scope.to_data`."""
    ports = frozenset(Port(device, label) for device, label in data["ports"])
    owners = frozenset(data.get("owners", ()))  # not in locks of earlier versions
    return Scope(
        frozenset(data["hosts"]),
        ports,
        frozenset(data["devices"]),
        bool(data["everything"]),
        owners,
    )


def ranges(labels: Sequence[str]) -> str:
    """Labels as short text: `1-4,7,9`; labels that are not numbers are listed, shortened if there
    are many.
    """
    tokens: list[str] = []
    run: list[str] = []
    for label in [*labels, ""]:
        if run and label.isdecimal() and run[-1].isdecimal() and int(label) == int(run[-1]) + 1:
            run.append(label)
            continue
        if len(run) > 2:
            tokens.append(f"{run[0]}-{run[-1]}")
        else:
            tokens += run
        run = [label] if label else []
    return ",".join(tokens[:12]) + (f",... ({len(labels)} ports)" if len(tokens) > 12 else "")


def _some(names: Iterable[str], most: int) -> str:
    found = sorted(names, key=natural)
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


def reachable_scope(lab: Lab, hosts: Iterable[HostName]) -> Scope:
    """Hosts with everything their fibres reach: the device ports they end at, and
    wavelength-selective devices whole.

    A wavelength-selective device takes its whole map as one profile (WaveShaper, Finisar EWP), so
    two cannot write it at once. A host covers its partitions; a partition covers itself.
    """
    named = frozenset(hosts) & frozenset(lab.hosts)
    wanted = named | {
        name for name, host in lab.hosts.items() if host.whole is not None and host.machine in named
    }
    ports = {
        port
        for host, fibre in ((p.host, f) for p, f in lab.fibres.items())
        if host in wanted
        for port in (fibre.enters, fibre.leaves)
    }
    return Scope(wanted) | of_ports(lab, ports)


def of_ports(lab: Lab, ports: Iterable[Port]) -> Scope:
    """These ports; wavelength-selective devices as a whole."""
    found = frozenset(ports)
    whole = frozenset(
        d for d in {p.device for p in found} if d in lab.devices and lab.traits_of(d).spectral
    )
    return Scope(ports=frozenset(p for p in found if p.device not in whole), devices=whole)


def of_settings(lab: Lab, settings: Iterable[Setting]) -> Scope:
    """The ports that these settings use."""
    return of_ports(
        lab, (port for setting in settings for port in (setting.ingress, setting.egress))
    )


def read_scope(
    lab: Lab, hosts: Sequence[str] = (), ports: Sequence[str] = (), devices: Sequence[str] = ()
) -> Scope:
    """The scope an operator names: hosts `gpu01,gpu02`, ports `ocs1:1-16` or `ocs1:4,ocs2:7`,
    devices; by default the whole lab.

    A host covers everything its fibres reach. A range may include ports that are not cabled.
    Raises: Usage - a name the lab does not know; all of them at once.
    """
    problems: list[str] = []
    named = [_known(h, lab.hosts, "host", problems) for h in _split(hosts)]
    whole = [_known(d, lab.devices, "device", problems) for d in _split(devices)]
    chosen: set[Port] = set()
    for word in _split(ports):
        device, colon, label = word.partition(":")
        if not colon or not label:
            problems.append(
                f"--ports {word}: wanted DEVICE:PORT or DEVICE:FIRST-LAST, such as ocs1:1-16"
            )
        else:
            _known(device, lab.devices, "device", problems)
            labels = _labels(device, label, lab)
            chosen |= {Port(device, one) for one in labels}
            if device in lab.devices and not any(Port(device, one) in lab.cabled for one in labels):
                problems.append(f"--ports {word}: {no_fibre(word, lab)}")
    if problems:
        raise Usage("\n".join(problems))
    scope = reachable_scope(lab, named) | of_ports(lab, chosen) | Scope(devices=frozenset(whole))
    return scope or WHOLE


def _split(tokens: Sequence[str]) -> list[str]:
    return [part.strip() for word in tokens for part in word.split(",") if part.strip()]


def _known(name: str, known: Mapping[str, object], kind: str, problems: list[str]) -> str:
    if name not in known:
        problems.append(
            f"{kind} {name} is not in the lab ({summary(known, kind)}){did_you_mean(name, known)}"
        )
    return name


def _labels(device: DeviceName, label: str, lab: Lab) -> list[str]:
    """One label, or the numbers of a range; a label of the inventory is never read as a range."""
    ends = re.fullmatch(r"([0-9]+)-([0-9]+)", label)
    if ends is None or Port(device, label) in lab.cabled:
        return [label]
    first, last = int(ends[1]), int(ends[2])
    return [str(n) for n in range(first, last + 1)] if first <= last < first + 10_000 else [label]
