"""Polatis (HUBER+SUHNER) switches over RESTCONF: port 8008, /api, Basic authentication.

Grades as in polatis_yang. REAL (mocks of quintons/polatis2): product-information, the rows of a
collection, URLs without a module's name, that answers carry an empty `server`, an `etag` of three
groups of digits, `connection: close` and chunked bodies. CODE: a PUT of one pair is 201 when it was
made and 204 when it replaced, POST 201, DELETE 204, 409 for a port in use, 404 for a pair to delete
that is not there, 204 for one to show that is not there (pqnstack); one entry is an object, the
list below a collection an array (pqnstack, GQuON); bodies without a module's name and without a
type are taken; labels by PATCH, of one port and of the list. DOC (RFC 8040): the root resource's
discovery, errors, If-Match and 412, one child per POST, 405. A public complaint: "POST goes into
candidate datastore and is discarded in ~5 s": `post_lost_s`. U: shutters over RESTCONF (names of
the operations: ONOS, tcdona3), the form of an empty collection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from emulators.devices.dialects import restconf
from emulators.devices.dialects.http import HttpDialect, Request, Response
from emulators.devices.dialects.polatis_scpi import numbered
from emulators.devices.dialects.polatis_yang import (
    NEWEST,
    NUMBERS,
    OPTICAL,
    PolatisYang,
    Refused,
    Row,
    Table,
)
from emulators.devices.family import Family
from emulators.optics.plant import Pair, Plant

READ, WRITE = ("GET", "HEAD"), ("PUT", "PATCH", "POST", "DELETE")
SHUTTERS = {"optical-switch:port-set-state", "polatis-switch:port-shutter-set-state"}
# DOC: RFC 8040 3.1
HOST_META = b'<XRD xmlns="http://docs.oasis-open.org/ns/xri/xrd-1.0"><Link rel="restconf" href="/api"/></XRD>'


class Answered(Exception):
    """The answer is known already."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class PolatisRestconf(HttpDialect[tuple[Pair, ...]]):
    """One switch. revision: of module optical-switch, before 2017-08-04 with `pairs`. voa:
    attenuators at the egress ports.

    empty_204: a collection without entries is 204 too (U); else it is JSON or XML without entries
    (U; CODE: a web page of a public project reads the list in it without asking). older_ports:
    there is a table `ports`, with labels to be read (CODE). post_lost_s: a pair made by POST is
    gone so long after (s); None: it stays. keep_alive: connections outlive an answer.
    """

    writes = re.compile(r"^(PUT|PATCH|POST|DELETE) ")
    realm, chunks, server = "Polatis", True, ""

    def __init__(
        self,
        plant: Plant,
        *,
        model: str | None = None,
        serial: str = "2000",
        firmware: str = "6.7.3.9",
        revision: str = NEWEST,
        boot_mode: str = "AUTO",
        voa: bool = True,
        empty_204: bool = False,
        older_ports: bool = False,
        post_lost_s: float | None = None,
        keep_alive: bool = False,
        username: str | None = "admin",
        password: str | None = "root",
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(
            plant, username=username, password=password, seed=seed, idle_s=idle_s, boot_s=boot_s
        )
        self.closes, self.empty_204, self.post_lost_s = not keep_alive, empty_204, post_lost_s
        self.data = PolatisYang(
            self,
            model=model,
            serial=serial,
            firmware=firmware,
            revision=str(revision),
            boot_mode=boot_mode,
            voa=voa,
            older_ports=older_ports,
        )
        self._edition = self._random.randrange(10**15, 10**16)
        self._passing: dict[Pair, float] = {}
        self._hold_changed = False

    def preset(self, ingress: str, egress: str) -> None:
        """Make a pair as if it had been there for ever. Raises ValueError."""
        self.data.preset((ingress, egress))

    # ---- the manner

    def snapshot(self, now: float) -> tuple[Pair, ...]:
        return self.data.pairs()

    def rebooted(self, keep: bool, now: float) -> None:
        self._passing.clear()
        self.data.rebooted(keep, now)

    def on_light(self, now: float) -> None:
        self._hold_changed = self.data.hold(now)

    def tick(self, now: float) -> None:
        due = [pair for pair, at in self._passing.items() if at <= now]
        for pair in due:
            del self._passing[pair]
            self._edition += 1
        self.plant.disconnect(due, now)
        super().tick(now)

    def next_event(self, now: float) -> float | None:
        times = [
            t
            for t in (super().next_event(now), min(self._passing.values(), default=None))
            if t is not None
        ]
        return now if self._hold_changed else min(times, default=None)

    def denied(self, request: Request, now: float) -> Response:
        return restconf.failure(request, 409, "resource-denied", "the switch refuses")

    def error(self, status: int, request: Request | None = None) -> Response:
        tag = {
            401: "access-denied",
            404: "invalid-value",
            405: "operation-not-supported",
            413: "too-big",
        }
        return restconf.failure(request, status, tag.get(status, "malformed-message"), "")

    def answer(self, request: Request, now: float) -> Response:
        try:
            return self._resource(request, now)
        except Answered as done:
            return done.response
        except Refused as no:
            status = 409 if no.tag == "operation-failed" else restconf.STATUS[no.tag]
            return restconf.failure(request, status, no.tag, no.message, no.app_tag, no.where)
        except ValueError as problem:
            return restconf.failure(request, 400, "malformed-message", str(problem)[:200])

    # ---- resources

    def _resource(self, request: Request, now: float) -> Response:
        parts = [part for part in request.path.split("/") if part]
        match parts:
            case [".well-known", "host-meta"]:
                self._only(request, *READ)
                return Response(200, HOST_META, "application/xrd+xml")
            case ["api"]:
                self._only(request, *READ)
                content = {"data": {}, "operations": {}, "yang-library-version": "2016-06-21"}
                return restconf.answer(
                    request, "ietf-restconf", restconf.ERRORS, "restconf", content, {}
                )
            case ["api", "operations", name] if name in SHUTTERS:
                self._only(request, "POST")
                return self._shutter(request, now)
            case ["api", "data", "optical-switch:product-information" | "product-information"]:
                self._only(request, *READ)
                return self._shown(request, "product-information", self.data.product)
            case ["api", "data", name]:
                return self._collection(request, *self._table(request, name), now)
            case ["api", "data", name, entry]:
                return self._entry(request, *self._table(request, name), entry, now)
            case ["api", "data", name, entry, leaf]:
                return self._leaf(request, *self._table(request, name), entry, leaf, now)
        raise self._missing(request)

    def _table(self, request: Request, name: str) -> tuple[str, Table]:
        module, _, bare = name.rpartition(":")
        table = self.data.tables.get(bare)
        if table is None or (
            module not in ("", table.module) and (module, bare) != ("polatis-switch", "voa")
        ):
            raise self._missing(request)
        return bare, table

    def _collection(self, request: Request, name: str, table: Table, now: float) -> Response:
        self._only(request, *READ, *(WRITE if table.writable else ()))
        if request.method in READ:
            rows = self._rows(name, now)
            if not rows and self.empty_204:
                return self._nothing(request)
            return self._shown(request, name, {table.rows: [typed(row) for row in rows]})
        self._matched(request)
        old = self.data.configuration(self.data.pairs(), frozenset({name})).get(name, [])
        if request.method == "DELETE":
            return self._stored(name, [], now)
        given, content = restconf.body(request)
        if request.method == "POST":
            new = self._new_rows(table, given, content)
            if len(new) != 1:
                raise ValueError("a POST brings one entry")  # RFC 8040 4.4.1
            key = new[0][table.key]
            if any(row[table.key] == key for row in old):
                raise Refused("data-exists", f"{table.key} {key} exists", f"{table.rows}={key}")
            before = set(self.plant.pairs())
            self._stored(name, [*old, *new], now, posted=True)
            if self.post_lost_s is not None:
                self._passing |= {
                    pair: now + self.post_lost_s
                    for pair in self.plant.pairs()
                    if pair not in before
                }
            return Response(
                201, headers={"location": f"{request.path}/{table.rows}={key}", **self._tag()}
            )
        if given != name or not isinstance(content, dict | str):
            raise ValueError(f"{name} is wanted")
        inside = content if isinstance(content, dict) else {}
        if set(inside) - {table.rows}:
            raise Refused(
                "unknown-element", f"{min(set(inside) - {table.rows})[:40]} is not in {name}"
            )
        new = self._new_rows(table, table.rows, inside.get(table.rows))
        return self._stored(
            name, new if request.method == "PUT" else merged(old, new, table.key), now
        )

    def _entry(self, request: Request, name: str, table: Table, entry: str, now: float) -> Response:
        listed, equals, keys = entry.partition("=")
        if listed != table.rows:
            raise self._missing(request)
        self._only(
            request,
            *READ,
            *((("PUT", "PATCH", "DELETE") if equals else ("PATCH",)) if table.writable else ()),
        )
        if request.method in READ:
            rows = self._rows(name, now)
            if not equals:
                return (
                    self._shown(request, listed, [typed(row) for row in rows])
                    if rows
                    else self._nothing(request)
                )
            found = self._at(rows, table, keys)
            return (
                self._nothing(request)
                if found is None
                else self._shown(request, listed, typed(found))
            )
        self._matched(request)
        old = self.data.configuration(self.data.pairs(), frozenset({name})).get(name, [])
        if not equals:
            return self._stored(
                name, merged(old, self._new_rows(table, *restconf.body(request)), table.key), now
            )
        existing = self._at(old, table, keys)
        if request.method == "DELETE":
            if existing is None:
                raise self._missing(request)
            return self._stored(name, [row for row in old if row is not existing], now)
        if existing is None and request.method == "PATCH":
            raise self._missing(request)
        given, content = restconf.body(request)
        key = keys.partition(",")[0]
        if isinstance(content, dict):
            content = {table.key: int(key) if key.isdecimal() else key, **content}
        (new,) = self._new_rows(table, given, content)
        if new[table.key] != key:
            raise Refused(
                "invalid-value", f"{table.key} {new[table.key]} is not {key}", f"{table.rows}={key}"
            )
        kept = [row for row in old if row is not existing]
        changed = {**existing, **new} if request.method == "PATCH" and existing is not None else new
        response = self._stored(name, [*kept, changed], now)
        return Response(201, headers=response.headers) if existing is None else response

    def _leaf(
        self, request: Request, name: str, table: Table, entry: str, leaf: str, now: float
    ) -> Response:
        """One leaf of one entry (DOC: RFC 8040 3.5)."""
        listed, _, keys = entry.partition("=")
        if listed != table.rows or leaf not in table.leaves:
            raise self._missing(request)
        self._only(
            request,
            *READ,
            *(("PUT", "PATCH", "DELETE") if table.writable and leaf != table.key else ()),
        )
        reads = request.method in READ
        rows = (
            self._rows(name, now)
            if reads
            else self.data.configuration(self.data.pairs()).get(name, [])
        )
        existing = self._at(rows, table, keys)
        if existing is None or (reads and leaf not in existing):
            raise self._missing(request)
        if reads:
            return self._shown(request, leaf, typed(existing)[leaf])
        self._matched(request)
        changed = {word: value for word, value in existing.items() if word != leaf}
        if request.method != "DELETE":
            given, content = restconf.body(request)
            if given != leaf:
                raise Refused("unknown-element", f"{given[:40]} is not {leaf}")
            changed[leaf] = plain(leaf, content)
        return self._stored(name, [changed if row is existing else row for row in rows], now)

    def _shutter(self, request: Request, now: float) -> Response:
        given, content = restconf.body(request)
        if given not in ("input", "port-set-state", "port-shutter-set-state") or not isinstance(
            content, dict
        ):
            raise ValueError("input is wanted")
        if not content or set(content) - {"port-enab", "port-disab"}:
            raise Refused("unknown-element", "port-enab or port-disab is wanted")
        asked = {self.data.side(str(port)): word == "port-disab" for word, port in content.items()}
        self.wrote(now)
        for side, disable in asked.items():
            self.data.shut([side], disable, now)
        return Response(204)

    # ---- inside

    def _rows(self, name: str, now: float) -> Sequence[Row]:
        return self.data.everything(self.view(now), now, frozenset({name})).get(name, [])

    def _stored(
        self, name: str, rows: Sequence[Row], now: float, *, posted: bool = False
    ) -> Response:
        self.wrote(now)
        self.data.write({name: rows}, now)
        self._edition += 1
        if name == "cross-connects" and not posted:
            present = set(self.plant.pairs())
            named = {(row["ingress"], row["egress"]) for row in rows}
            self._passing = {
                pair: at
                for pair, at in self._passing.items()
                if pair in present and pair not in named
            }
        self._hold_changed = self.data.hold(now)
        return Response(204, headers=self._tag())

    def _new_rows(self, table: Table, given: str, content: Any) -> list[Row]:
        if given != table.rows:
            raise Refused("unknown-element", f"{given[:40]} is not {table.rows}")
        found: list[Row] = []
        for row in restconf.rows(content):
            if table.key not in row:
                raise Refused("missing-element", f"{table.key} is missing")
            if unknown := set(row) - set(table.leaves):
                raise Refused("unknown-element", f"{min(unknown)[:40]} is not in {table.rows}")
            found.append({leaf: plain(leaf, value) for leaf, value in row.items()})
        return found

    def _at(self, rows: Sequence[Row], table: Table, keys: str) -> Row | None:
        """Return the entry of `pair=1`, or of `pair=1,13` if that is the pair there is (CODE: a
        lab's script deletes so).
        """
        key, _, more = keys.partition(",")
        return next(
            (row for row in rows if row[table.key] == key and more in ("", row.get("egress", ""))),
            None,
        )

    def _tag(self) -> dict[str, str]:
        """REAL: the digits in groups of 4, 6 and 6. That they count changes is U."""
        digits = f"{self._edition % 10**16:016d}"
        return {"etag": f'"{digits[:4]}-{digits[4:10]}-{digits[10:]}"'}

    def _shown(self, request: Request, name: str, content: Any) -> Response:
        if request.headers.get("if-none-match", "") in (self._tag()["etag"], "*"):
            return Response(304, headers=self._tag())
        return restconf.answer(request, "optical-switch", OPTICAL, name, content, self._tag())

    def _nothing(self, request: Request) -> Response:
        return Response(204, headers=self._tag())

    def _matched(self, request: Request) -> None:
        wanted = request.headers.get("if-match", "*")
        if wanted != "*" and self._tag()["etag"] not in [
            word.strip() for word in wanted.split(",")
        ]:
            raise Answered(
                restconf.failure(request, 412, "operation-failed", "changed by somebody else")
            )

    def _missing(self, request: Request) -> Answered:
        return Answered(
            restconf.failure(request, 404, "invalid-value", "there is no such resource")
        )

    def _only(self, request: Request, *methods: str) -> None:
        allowed = {"allow": ", ".join((*methods, "OPTIONS"))}
        if request.method == "OPTIONS":
            raise Answered(Response(200, headers=allowed))
        if request.method not in methods:
            reported = restconf.failure(
                request,
                405,
                "operation-not-supported",
                f"{request.method[:20]} is not allowed here",
            )
            raise Answered(Response(405, reported.body, reported.kind, allowed))


def typed(row: Row) -> dict[str, Any]:
    """Return a row as JSON has it: port numbers are numbers, decimal64 is text (RFC 7951)."""
    return {leaf: int(value) if leaf in NUMBERS else value for leaf, value in row.items()}


def plain(leaf: str, value: Any) -> str:
    """Return a value as text. Raises ValueError: not a value of that leaf."""
    if (
        isinstance(value, dict | list | bool)
        or value is None
        or (isinstance(value, float) and leaf in NUMBERS)
    ):
        raise ValueError(f"{leaf}: {str(value)[:40]} is no value")
    text = str(value).strip()
    return (
        str(int(text))
        if leaf in NUMBERS and text.isascii() and text.isdecimal() and len(text) < 12
        else text
    )


def merged(old: Sequence[Row], new: Sequence[Row], key: str) -> list[Row]:
    """Return `old` with the leaves of `new`."""
    by_key: dict[str, Mapping[str, str]] = {row[key]: row for row in old}
    for row in new:
        by_key[row[key]] = {**by_key.get(row[key], {}), **row}
    return list(by_key.values())


FAMILY = Family("polatis-restconf", ("http",), PolatisRestconf, numbered, login=("admin", "root"))
