"""Polatis / HUBER+SUHNER switches over RESTCONF (RFC 8040): `http://host:8008`, or https.

Resources and answers as in public clients (devices: port 8008, Basic login,
`application/yang-data+json|xml`, ETag in answers).

How circuits are written:
- One PUT or DELETE of `pair=N` per circuit. A public client's PUT of a pair is XML, so this one's
  is.
- A PUT carries `If-None-Match: *`: it never replaces what another client put there meanwhile (412,
  and the device is read again). A DELETE carries the ETag last seen of the collection, when there
  is one, as `If-Match`.
- POST is never used: a field report has it land in the candidate datastore and vanish after about 5
  s.
- A PUT of the whole collection replaces *all* circuits. It is used only where the option
  `bulk_from` allows it, the answer to the read carried an ETag, and then under `If-Match`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from drivers.api import Evidence
from drivers.link.http import Answer
from drivers.rounds import Marks
from drivers.session.pairs import port_number
from drivers.session.polatis_yang import PolatisYang, Voa
from drivers.session.rest import OPTIONS, RestSession, open_http
from drivers.wire import polatis, rest
from drivers.wire.polatis import Pair
from drivers.wire.rest import Json
from optics import Dbm, DeviceConfig, Garbled, Identity, Refused, Traits

JSON = {"Accept": "application/yang-data+json"}
MAP = "/data/optical-switch:cross-connects"
PAIR = "optical-switch:pair"
"""A list's name with its module's (RFC 7951); a client reads its entries under it, one as an object
or all as a list (CODE).
"""
VOA = ("optical-switch:voa", "polatis-switch:voa")
"""Where attenuators are: public clients have them in one module, the list of resources of another
in the other.
"""
RETRIES = 3
"""Times a refused precondition (412) is answered by reading again before the change is given up."""


class PolatisRestconf(PolatisYang):
    """A Polatis switch over RESTCONF."""

    OPTIONS: ClassVar[Mapping[str, str]] = {
        **PolatisYang.OPTIONS,
        "bulk_from": "change this many circuits or more by one PUT of the whole map under If-Match; default 0, never",
        **OPTIONS,
    }
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Polatis / HUBER+SUHNER, RESTCONF",
        ("http", "https"),
        {
            "identify": "REAL",
            "read": "REAL",
            "change": "CODE",
            "refusals": "CODE",
            "power": "CODE",
            "ports": "CODE",
            "attenuation": "assumed",
            "settling": "DOC",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        link = open_http(config)
        self._api = "" if link.prefix.endswith("/api") else "/api"
        self._session: RestSession = RestSession(link)
        self._bulk_from = int(config.options.get("bulk_from", "0"))
        self._tag = ""
        self._voa = VOA[0]
        self._seen: frozenset[Pair] = frozenset()
        self._both_keys = False

    async def identify(self) -> Identity:
        def parse(answer: Answer) -> Identity:
            reply = rest.mapping(_body(answer), "the answer")
            found = rest.mapping(
                reply.get("optical-switch:product-information", reply), "product-information"
            )
            keys = ("manufacturer", "model-name", "serial-number", "software-version")
            vendor, model, serial, firmware = (rest.text(found, key) for key in keys)
            return self._identity(vendor, model, serial, firmware)

        async with self._lock:
            return await self._session.ask(
                f"{self._api}/data/optical-switch:product-information", parse, headers=JSON
            )

    async def _set_ports(self, numbers: list[int], enabled: bool) -> None:
        """Write each port's whole row back with only its `status` changed."""
        rows = await self._ports("optical-switch:port-config")
        for n in numbers:
            if n not in rows:
                raise Refused(f"{self.name}: port {n} has no port-config")
            prefix = "PC_" if rest.text(rows[n], "status").startswith("PC_") else ""
            row = {**rows[n], "status": f"{prefix}{'ENABLED' if enabled else 'DISABLED'}"}
            row.pop("peer-port", None)  # state, not configuration
            await self._put(f"optical-switch:port-config/port={n}", {"optical-switch:port": [row]})

    async def _read(self) -> frozenset[Pair]:
        self._seen, self._tag = await self._session.ask(
            f"{self._api}{MAP}", _parse_map, headers=JSON
        )
        return self._seen

    async def _break(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        if self._in_bulk(pairs):
            left = list(pairs)
            for _ in range(RETRIES):
                if not (left := [pair for pair in left if pair in self._seen]):
                    return
                if not await self._replace(self._seen - set(left), left, marks):
                    return
        for pair in pairs:
            await self._one("DELETE", pair, marks)

    async def _make(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        if self._in_bulk(pairs):
            for _ in range(RETRIES):
                if any(
                    pair[0] == held[0] or pair[1] == held[1]
                    for pair in pairs
                    for held in self._seen
                ):
                    break  # another client changed the map: pair by pair, each with its own answer
                if not await self._replace(self._seen | set(pairs), pairs, marks):
                    return
        for pair in pairs:
            await self._one("PUT", pair, marks)

    def _in_bulk(self, pairs: list[Pair]) -> bool:
        return bool(self._bulk_from and len(pairs) >= self._bulk_from and self._tag)

    async def _replace(
        self, wanted: frozenset[Pair], changed: list[Pair], marks: Marks[Pair]
    ) -> bool:
        """Put the whole map; True when another client changed it meanwhile and it was read
        again.
        """
        rows = [{"ingress": a, "egress": b} for a, b in sorted(wanted)]
        body = json.dumps({"optical-switch:cross-connects": {"pair": rows}}).encode()
        marks.write()
        status, text = await self._write(
            "PUT", MAP, body, "application/yang-data+json", {"If-Match": self._tag}
        )
        if status in (409, 412):
            await self._read()
            return True
        if text:
            marks.reasons.update(dict.fromkeys(changed, text))
        else:
            self._seen = wanted
        return False

    async def _one(self, method: str, pair: Pair, marks: Marks[Pair]) -> None:
        """Write one circuit; the reason for a refusal goes into `marks.text`."""
        both = f"{MAP}/pair={pair[0]},{pair[1]}"
        path = both if self._both_keys else f"{MAP}/pair={pair[0]}"
        body = (
            f"<pair><ingress>{pair[0]}</ingress><egress>{pair[1]}</egress></pair>".encode()
            if method == "PUT"
            else b""
        )
        for _ in range(RETRIES):
            guard = (
                {"If-None-Match": "*"}
                if method == "PUT"
                else {"If-Match": self._tag}
                if self._tag
                else {}
            )
            refused_tag = self._tag
            marks.write()
            status, text = await self._write(method, path, body, "application/yang-data+xml", guard)
            if (
                method == "DELETE"
                and status in (400, 404)
                and path != both
                and pair in await self._read()
            ):
                path = both  # still there: a client deletes by both ports (CODE)
                continue
            if status != 412:
                break
            seen = await self._read()
            if method == "DELETE" and pair not in seen:
                return  # gone already; what took its place belongs to another client
            if method == "PUT" and (
                held := [other for other in sorted(seen) if other[0] == pair[0]]
            ):
                text = (
                    ""
                    if pair in seen
                    else f"port {pair[0]} is held by {held[0][0]}->{held[0][1]}, made meanwhile"
                )
                break
            # no client wrote: this device's tags are not the collection's
            if self._tag == refused_tag:
                self._tag = ""
        self._both_keys = self._both_keys or (path == both and not text)
        if text and not (method == "DELETE" and status == 404):
            marks.reasons[pair] = text

    async def _write(
        self, method: str, path: str, body: bytes, kind: str, headers: Mapping[str, str]
    ) -> tuple[int, str]:
        """Write; return the status and the reason for a refusal, empty if it was done."""
        reply = {**JSON, **({"Content-Type": kind} if body else {}), **headers}

        def parse(answer: Answer) -> tuple[int, str, str]:
            if answer.status in (200, 201, 204):
                return answer.status, "", _etag(answer)
            if not 400 <= answer.status < 500:
                # done or not: read and see
                raise Garbled(rest.restconf_message(answer.status, answer.body))
            text = f'refused "{method} {path.rpartition(":")[2]}": {rest.restconf_message(answer.status, answer.body)}'
            return answer.status, text, self._tag

        try:
            status, text, self._tag = await self._session.send(
                method, f"{self._api}{path}", parse, body=body, headers=reply
            )
        except Refused as error:
            return 403, str(error)
        return status, text

    async def _put(self, resource: str, row: object) -> None:
        body = json.dumps(row, default=str).encode()
        _, text = await self._write(
            "PUT", f"/data/{resource}", body, "application/yang-data+json", {}
        )
        if text:
            raise Refused(f"{self.name} {text}")

    async def _ports(self, resource: str) -> dict[int, Mapping[str, Json]]:
        """The rows of a list of ports by `port-id`; empty if the switch has no such list."""

        def parse(answer: Answer) -> dict[int, Mapping[str, Json]]:
            if answer.status == 404:
                return {}
            held = rest.mapping(rest.mapping(_body(answer), "the answer").get(resource), resource)
            return {
                rest.whole(row, "port-id"): row
                for row in rest.entries(held.get("port", []), "port")
            }

        return await self._session.ask(f"{self._api}/data/{resource}", parse, headers=JSON)

    async def _attenuators(self) -> dict[int, Voa]:
        """The module that answers is the one to write to."""
        for self._voa in VOA:
            if rows := await self._ports(self._voa):
                return {n: _voa(row) for n, row in rows.items()}
        return {}

    async def _set_attenuators(self, wanted: Mapping[int, Voa]) -> None:
        for n, voa in sorted(wanted.items()):
            row: dict[str, object] = {"port-id": n, "atten-mode": voa.mode}
            if voa.level is not None:
                row |= {"atten-level": polatis.level(voa.level), "reference-port": voa.reference}
            await self._put(f"{self._voa}/port={n}", {f"{self._voa.partition(':')[0]}:port": [row]})

    async def _meters(self) -> dict[int, Dbm]:
        rows = await self._ports("optical-switch:opm-power")
        return {n: float(rest.number(row, "power")) for n, row in rows.items() if "power" in row}

    async def _states(self) -> dict[int, str]:
        return {
            n: rest.text(row, "status")
            for n, row in (await self._ports("optical-switch:port-config")).items()
        }


def _voa(row: Mapping[str, Json]) -> Voa:
    level = float(rest.number(row, "atten-level")) if "atten-level" in row else None
    reference = rest.text(row, "reference-port", "")
    return Voa(rest.text(row, "atten-mode"), level, port_number(reference) or 0)


def _body(answer: Answer) -> Json:
    if answer.status != 200:
        raise Garbled(rest.restconf_message(answer.status, answer.body))
    return rest.parse_json(answer.body)


def _parse_map(answer: Answer) -> tuple[frozenset[Pair], str]:
    """The map and its ETag. Without any circuit the resource may not exist (RFC 8040, 3.3.1: 404
    `invalid-value`).
    """
    missing = answer.status == 404 and all(
        word in answer.body for word in (b"ietf-restconf:errors", b"invalid-value")
    )
    if answer.status == 204 or missing:
        return frozenset(), _etag(answer)
    reply = rest.mapping(_body(answer), "the answer")
    held = (
        reply
        if PAIR in reply
        else rest.mapping(reply.get("optical-switch:cross-connects"), "cross-connects")
    )
    found = rest.entries(held.get("pair", held.get(PAIR, [])), "pair")
    pairs = [(rest.whole(row, "ingress"), rest.whole(row, "egress")) for row in found]
    return polatis.whole_map(pairs), _etag(answer)


def _etag(answer: Answer) -> str:
    """The answer's ETag, empty where there is none that a request could carry back."""
    tag = answer.headers.get("etag", "")
    return tag if tag.isascii() and tag.isprintable() else ""
