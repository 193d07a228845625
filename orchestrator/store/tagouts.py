"""Tag-outs: a person works at a fibre, a port, a device or a host: no light is switched there, and
no traffic over packet switches is started or stopped there, until the tag is removed."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from optics import DeviceName, HostPort, Missing, Port, Usage
from optics.errors import Interlock
from optics.plain import did_you_mean, natural, printable
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.port_names import host_port, no_fibre
from orchestrator.store.audit import Who, add_audit
from orchestrator.store.database import Database
from orchestrator.store.lock_queue import clock


@dataclass(frozen=True, slots=True)
class Tagout:
    """One tag. since, ended: wall seconds.

    subject: a fibre, a trunk, a device, `device:port`, a packet switch or a cable to it, a host or
    `host:pN`.
    """

    id: str
    subject: str
    user: str
    owner: str
    host: str
    since: float
    reason: str
    ended: float | None = None
    ended_by: str = ""
    why: str = ""

    def __str__(self) -> str:
        return printable(
            f"{self.subject} is tagged out by {self.user} since {clock(self.since)}: {self.reason} [tag {self.id}]",
            keep="",
        )


@dataclass(frozen=True, slots=True)
class Place:
    """The places of a subject: any light, or traffic over packet switches, at one of these uses
    it.
    """

    ports: frozenset[Port] = frozenset()
    host_ports: frozenset[HostPort] = frozenset()
    devices: frozenset[DeviceName] = frozenset()


def place_of(subject: str, lab: Lab) -> Place:
    """Find the subject an operator named. Raises: Usage - the lab has no such name, or it is
    ambiguous.
    """
    found: list[tuple[str, Place]] = []
    fibres = {fibre.name: fibre for fibre in lab.fibres.values()}
    if subject in lab.hosts:
        found.append(
            (
                "host",
                _at_host(lab, *(p for p in (*lab.fibres, *lab.segment_at) if p.host == subject)),
            )
        )
    if subject in lab.devices:
        found.append(("device", Place(devices=frozenset({subject}))))
    if subject in fibres:
        found.append(("fibre", _at_host(lab, fibres[subject].port)))
    found += [
        ("fibre", Place(frozenset({t.start, t.end}))) for t in lab.trunks if t.name == subject
    ]
    cables = {
        cable: port for segment in lab.segments.values() for cable, port in segment.cables.items()
    }
    if subject in lab.segments:
        found.append(("packet switch", _at_host(lab, *lab.segments[subject].ports.values())))
    if subject in cables:
        found.append(("cable", _at_host(lab, cables[subject])))
    name, colon, label = subject.partition(":")
    if colon and label and name in lab.devices:
        if why := no_fibre(subject, lab):
            raise Usage(
                f"{subject}: {why}",
                hint=f'or tag the whole device out: testbed tagout {name} --reason "..."',
            )
        found.append(("port", Place(frozenset({Port(name, label)}))))
    if colon and label and name in lab.hosts:
        port = host_port(subject, lab)
        if port is None or str(port) != subject:
            has = ", ".join(f"p{number}" for number in lab.hosts[name].ports)
            raise Usage(
                f"{subject}: {name} has no port {label} (it has {has})"
                + (f"; did you mean {port}?" if port else "")
            )
        found.append(("port", _at_host(lab, port)))
    if len(found) == 1:
        return found[0][1]
    if found:
        raise Usage(
            f"{subject} names a {' and a '.join(kind for kind, _ in found)} of this lab; name one of its ports instead"
        )
    names = sorted(
        {*lab.hosts, *lab.devices, *fibres, *(t.name for t in lab.trunks), *lab.segments, *cables},
        key=natural,
    )
    raise Usage(
        f"{subject} is not a fibre, device, device:port, packet switch, host or host:pN of this lab"
        + did_you_mean(name if colon else subject, names)
    )


def _at_host(lab: Lab, *ports: HostPort) -> Place:
    """Cables by their host ends: the light that leaves or reaches these, and the device ports that
    only they use.
    """
    existing = [lab.fibres[p] for p in ports if p in lab.fibres]
    alone = {f.enters for f in existing if len(lab.transmitters[f.enters]) == 1} | {
        f.leaves for f in existing
    }
    partitioned = (
        HostPort(name, p.number)
        for p in ports
        for name, host in lab.hosts.items()
        if host.partition and host.machine == p.host
    )
    return Place(frozenset(alone), frozenset((*ports, *partitioned)))


class Tagouts:
    """The tags on one lab, as seen and changed by `who`."""

    def __init__(self, store: Database, lab: str, who: Who) -> None:
        self.store, self.lab, self.who = store, lab, who

    def set(self, subject: str, reason: str) -> Tagout:
        """Tag `subject` out; several people may tag the same."""
        now = time.time()
        with self.store.transaction() as db:
            made = Tagout(
                secrets.token_hex(3),
                subject,
                self.who.user,
                self.who.owner,
                self.who.host,
                now,
                reason,
            )
            db.execute(
                "INSERT INTO tagouts(id,lab,subject,user,owner,host,since,reason) VALUES(?,?,?,?,?,?,?,?)",
                (made.id, self.lab, subject, made.user, made.owner, made.host, now, reason),
            )
            add_audit(
                db, self.lab, self.who, now, "tagged out", subject, f"{reason} [tag {made.id}]"
            )
        return made

    def listed(self) -> list[Tagout]:
        """The present tags, oldest first."""
        rows = self.store.read(
            "SELECT * FROM tagouts WHERE lab=? AND ended IS NULL ORDER BY since, id", (self.lab,)
        )
        return [Tagout(**{k: v for k, v in dict(row).items() if k != "lab"}) for row in rows]

    def remove(self, name: str, *, steal: bool = False, why: str = "") -> list[Tagout]:
        """Remove tags: one by its id, or all of the caller's own on a subject. steal: another
        user's, by its exact id and a reason.

        Raises: Missing - no such tag. Interlock - it belongs to another user.
        """
        hanging = self.listed()
        chosen = [tag for tag in hanging if tag.id == name] or [
            tag for tag in hanging if tag.subject == name and not steal
        ]
        if not chosen:
            what = "tag" if steal else "tag or tagged subject"
            raise Missing(f"no {what} {name} on this lab", hint="testbed tagout list")
        mine = [
            tag
            for tag in chosen
            if (tag.user, tag.owner) == (self.who.user, self.who.owner) or steal
        ]
        if not mine:
            tag = chosen[0]
            raise Interlock(
                f"{tag}: only {tag.user} may remove it",
                hint=f'ask {tag.user}; if no one is working there: testbed tagout remove {tag.id} --steal --reason "..."',
            )
        now = time.time()
        with self.store.transaction() as db:
            for tag in mine:
                db.execute(
                    "UPDATE tagouts SET ended=?, ended_by=?, why=? WHERE id=?",
                    (now, self.who.user, why, tag.id),
                )
                stolen = (tag.user, tag.owner) != (self.who.user, self.who.owner)
                text = f"of {tag.user}: {tag.reason}" + (f"; because: {why}" if why else "")
                add_audit(
                    db,
                    self.lab,
                    self.who,
                    now,
                    "tag stolen" if stolen else "tag removed",
                    tag.subject,
                    f"{text} [tag {tag.id}]",
                )
        return mine
