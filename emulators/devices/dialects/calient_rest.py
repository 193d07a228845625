"""Calient S-series switches over REST: /rest/<resource>/?id=<operation>, Basic authentication, then
a session cookie.

Grades: REAL a comment in NTT RENAT (one port in detail), CODE literals of public clients (RENAT,
the COSMOS Ryu application, a connection logger, an OCS inventory), U unconfirmed. REAL: the members
of a port, all values text, powers with one decimal. CODE: the operations; answers of one operation
are a list of one {status, msg, description}, of a batch a list of {response: {...}}, and both come
with HTTP 200 whatever happened; status "1" is done, "0" is not; the members of rows and halves; a
one-way row has no half2; `add` also as a form; DELETE without an id; the cookie. U, and chosen so
that they ask most of a driver: names of the states, all texts, that `add` also activates, that the
answer comes before the light, HTTP codes of what is no operation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl

from emulators.devices.dialects.calient_table import (
    STYLES,
    Connection,
    Row,
    Table,
    aids,
    preset_by,
)
from emulators.devices.dialects.http import HttpDialect, Request, Response
from emulators.devices.family import Family
from emulators.optics.plant import Pair, Plant

COOKIE = "JSESSIONID"  # U: that there is one is CODE, its name nowhere
MOST_COOKIES = 64  # sessions remembered; the oldest goes
KINDS = {"bi": "2WAY", "uni": "1WAY"}  # CODE
# REAL: RENAT
THRESHOLDS = {
    "inoptc": "-20.0",
    "inopt": "-17.0",
    "inopth": "13.0",
    "outopwct": "-23.0",
    "outopwdh": "-20.0",
}
STATES = {"reserved": "RESERVED", "active": "ACTIVE"}  # U

Fields = Mapping[str, str]


class Failed(Exception):
    """An operation that is not done; it is reported inside a 200."""

    def __init__(self, msg: str, description: str = "") -> None:
        super().__init__(msg, description)
        self.verdict = verdict("0", msg, description)


class CalientRest(HttpDialect[tuple[Row, ...]]):
    """One switch.

    answer_s: every answer takes so long (s; CODE: clients wait 5, 15, 20 s). read_only: the user
    may read but not write (CODE: clients then fall back to TL1; that it is reported inside a 200 is
    U). meters: False gives NONE in power fields (REAL on the TL1 side).
    """

    writes = re.compile(r"^(DELETE /rest/|POST /rest/(crossconnects|ports)/)")
    realm = "Calient"

    def __init__(
        self,
        plant: Plant,
        *,
        model: str = "S320",
        serial: str = "C00002227",
        firmware: str = "6.0-3",
        username: str | None = "admin",
        password: str | None = "emulated",
        answer_s: float = 0.0,
        read_only: bool = False,
        meters: bool = True,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(
            plant, username=username, password=password, seed=seed, idle_s=idle_s, boot_s=boot_s
        )
        self.model, self.serial, self.firmware = model, serial, firmware
        self.answer_s, self.read_only = answer_s, read_only
        self.table = Table(plant, meters=meters)
        self._aliases: dict[tuple[str, str], str] = {}
        self._cookies: dict[str, None] = {}
        # what a batch turns, all together at its end (DOC: bulk, S320 hardware guide)
        self._set: list[Pair] | None = None
        self._operations: dict[tuple[str, str, str], Callable[[Request, float], object]] = {
            ("GET", "info", "softwareversion"): lambda *_: {"version": self.firmware},
            ("GET", "info", "restversion"): lambda *_: {"version": "1.0"},
            ("GET", "node", "summary"): self._node,
            ("GET", "ports", "summary"): self._summary,
            ("GET", "ports", "detail"): self._port,
            ("POST", "ports", "config"): partial(self._one, self._configure),
            ("GET", "crossconnects", "list"): self._list,
            ("GET", "crossconnects", "detail"): self._detail,
            ("POST", "crossconnects", "add"): partial(self._one, self._add),
            ("POST", "crossconnects", "badd"): partial(self._batch, self._add),
            ("POST", "crossconnects", "bdel"): partial(self._batch, self._delete),
            ("DELETE", "crossconnects", "delete"): partial(self._one, self._delete),
            ("POST", "crossconnects", "activate"): partial(self._one, self._activate),
            ("POST", "crossconnects", "deactivate"): partial(self._one, self._deactivate),
            ("POST", "crossconnects", "deleteall"): self._delete_all,
        }

    # ---- the manner

    def snapshot(self, now: float) -> tuple[Row, ...]:
        return self.table.rows(now)

    def rebooted(self, keep: bool, now: float) -> None:
        """Reserved and active connections survive a power cycle (U), logins do not."""
        self._cookies.clear()
        self.table.rebooted(keep, now, self.boot_s)

    def who(self, request: Request, now: float) -> str | None:
        """A cookie of an earlier answer does as well as a password (CODE: a client drops the
        password then).
        """
        if self.username is not None:
            try:
                crumb = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
            except CookieError:
                crumb = None
            if crumb is not None and crumb.value in self._cookies:
                return self.username
        return super().who(request, now)

    def dress(self, request: Request, response: Response, now: float) -> Response:
        if self.username is None or f"{COOKIE}=" in request.headers.get("cookie", ""):
            return response
        crumb = f"{self._random.getrandbits(128):032X}"
        self._cookies[crumb] = None
        if len(self._cookies) > MOST_COOKIES:
            del self._cookies[next(iter(self._cookies))]
        return replace(
            response,
            headers={**response.headers, "set-cookie": f"{COOKIE}={crumb}; Path=/rest; HttpOnly"},
        )

    def execute(self, session: Any, command: str, now: float) -> bytes:
        session.delay_s += self.answer_s
        return super().execute(session, command, now)

    def denied(self, request: Request, now: float) -> Response:
        no = verdict("0", "Request failed", "the switch refuses")
        batch = request.asked("id") in ("badd", "bdel")
        return Response.of_json([{"response": no}] if batch else [no])

    def error(self, status: int, request: Request | None = None) -> Response:
        return Response.of_json([verdict("0", f"HTTP {status}")], status)

    def answer(self, request: Request, now: float) -> Response:
        parts = [part for part in request.path.split("/") if part]
        if parts == ["api", "swagger.json"] and request.method == "GET":
            return Response.of_json(self._swagger())
        known = {
            (method, asked): do
            for (method, resource, asked), do in self._operations.items()
            if parts == ["rest", resource]
        }
        if not known:
            return self.error(404, request)
        usual = "delete" if request.method == "DELETE" else ""
        try:
            asked = request.asked("id") or self._texts(request).get("id", usual)
            do = known.get((request.method, asked))
            if do is None:
                allowed = sorted({method for method, _ in known})
                if request.method not in allowed:
                    return Response(405, headers={"allow": ", ".join(allowed)})
                raise Failed("Invalid id", asked[:40])
            if request.method != "GET":
                if self.read_only:
                    raise Failed("Permission denied", "user is read-only")
                self.wrote(now)
            return Response.of_json(do(request, now))
        except Failed as no:
            return Response.of_json([no.verdict])

    # ---- reading

    def _node(self, asked: Request, now: float) -> object:
        """Members as a public inventory reads them (CODE)."""
        who = {"serialnumber": self.serial, "partnumber": self.model}
        shown: dict[str, object] = {
            "SOFTWARE": [{"version": self.firmware}],
            "HARDWARE": {"nodeSysConfigInfo": who},
            "SYSCFG": who,
        }
        if asked.asked("detail") not in shown:
            raise Failed("Invalid detail", asked.asked("detail")[:40])
        return shown[asked.asked("detail")]

    def _summary(self, asked: Request, now: float) -> object:
        return [self._port_row(port, now) for port in self.table.ports]

    def _port_row(self, port: str, now: float) -> Fields:
        used = [c.name for which in ("in", "out") if (c := self.table.user((which, port)))]
        name = used[0] if used else ""
        aliases = {f"{which}alias": self._aliases.get((which, port), "") for which in ("in", "out")}
        return {
            "port": port,
            "conn": name,
            "connid": name,
            **aliases,
            "power": self.table.power(("in", port), now),
        }

    def _port(self, asked: Request, now: float) -> object:
        port = asked.asked("port")
        if port not in self.table.ports:
            raise Failed("Invalid port", port[:40])
        row = {"port": port}
        for which in ("in", "out"):
            side = (which, port)
            used = self.table.user(side)
            row |= {
                f"{which}power": self.table.power(side, now),
                f"{which}circuit": used.name if used else "",
                f"{which}owner": "TRANSIT" if used else "NONE",
                f"{which}as": self.table.administrative(side),
                f"{which}os": "IS" if used else "OOS",
                f"{which}oc": "FAIL" if side in self.plant.wrong.failed else "OK",
                f"{which}alias": self._aliases.get(side, ""),
            }
        return [row | THRESHOLDS]

    def _row(self, row: Row, now: float) -> Mapping[str, object]:
        states = dict(part.split("=") for part in row.state.split(","))
        both = row.kind == "2WAY"

        def half(source: str, target: str) -> Fields:
            inp, outp = (self.table.power(s, now) for s in (("in", source), ("out", target)))
            loss = f"{float(inp) - float(outp):.1f}" if self.table.meters else "NONE"
            reply = {"conn": f"{source}>{target}", "inp": inp, "outp": outp, "loss": loss}
            reply |= {"alarm": "CR" if states["OC"] == "FAIL" else "CL"}
            reply |= {word.lower(): states[word] for word in ("AS", "OS", "OC")}
            return {**reply, "state": STATES["reserved" if states["AS"] == "UMA" else "active"]}

        shown: dict[str, object] = {
            "name": row.name,
            "connid": row.name,
            "group": row.group,
            "band": "CBAND",
        }
        shown |= {"dir": "bi" if both else "uni", "half1": half(row.source, row.target)}
        return shown | ({"half2": half(row.target, row.source)} if both else {})

    def _list(self, asked: Request, now: float) -> list[Mapping[str, object]]:
        return [self._row(row, now) for row in self.view(now)]

    def _detail(self, asked: Request, now: float) -> object:
        found = [row for row in self._list(asked, now) if row["name"] == asked.asked("conn")]
        if not found:
            raise Failed("Invalid connection", asked.asked("conn")[:80])
        return found

    # ---- writing

    def _texts(self, asked: Request) -> Fields:
        """The arguments of a request, in the address, a form or a JSON object. Raises Failed."""
        texts = dict(asked.query)
        text = asked.body.strip()
        if text[:1] in (b"{", b"["):
            given = self._json(asked)
            if not isinstance(given, dict):
                raise Failed("Invalid body", "an object is wanted")
            texts |= all_text(given)
        elif text and text != b"null":
            texts |= dict(parse_qsl(text.decode("latin-1")[:4096], keep_blank_values=True))
        return texts

    def _json(self, asked: Request) -> object:
        try:
            return asked.json()
        except ValueError as problem:
            raise Failed("Invalid JSON", str(problem)[:80]) from None

    def _one(self, do: Callable[[Fields, float], str], asked: Request, now: float) -> object:
        return [verdict("1", do(self._texts(asked), now))]

    def _batch(self, do: Callable[[Fields, float], str], asked: Request, now: float) -> object:
        """One verdict per item, in their order; one that fails does not stop the rest (CODE)."""
        given = self._json(asked)
        if not isinstance(given, list) or not given:
            raise Failed("Invalid body", "a list is wanted")
        chosen = set(self.some(range(len(given)))) if self.partial else range(len(given))
        verdicts: list[Fields] = []
        self._set = []
        for index, item in enumerate(given):
            try:
                if index not in chosen:
                    raise Failed("Internal error", "not done")
                if not isinstance(item, dict):
                    raise Failed("Invalid item", "an object is wanted")
                verdicts.append(verdict("1", do(all_text(item), now)))
            except Failed as no:
                verdicts.append(no.verdict)
        pairs, self._set = self._set, None
        self.plant.connect(pairs, now)
        return [{"response": each} for each in verdicts]

    def _add(self, texts: Fields, now: float) -> str:
        source, target = texts.get("in", ""), texts.get("out", "")
        kind = KINDS.get(texts.get("dir", "bi"))
        if (label := self.table.unknown(source, target)) is not None:
            raise Failed("Invalid port", label[:40])
        if kind is None:
            raise Failed("Invalid dir", texts.get("dir", "")[:40])
        if kind == "2WAY" and source == target:
            raise Failed("Invalid connection", "a port with itself")
        name, group = (texts.get(key, "")[:64] for key in ("conn", "group"))
        connection = Connection(name, source, target, kind, group)
        if taken := self.table.taken(connection, now):
            raise Failed("Port in use", f"port {taken[0]} is used by {taken[1]}")
        if self.table.get(connection.name):
            raise Failed("Connection exists", connection.name)
        self._possible(connection)
        if not self.silent:
            self.table.add(connection)
            self._advance(connection, now)
        return f"Connection {connection.name} added"

    def _possible(self, connection: Connection) -> None:
        for pair in connection.pairs:
            if why := self.plant.wrong.lock(pair) or self.plant.why_not(pair):
                raise Failed("Operation failed", why)

    def _advance(self, connection: Connection, now: float) -> None:
        connection.active = True
        pairs = connection.pairs[:1] if self.half else connection.pairs
        if self._set is None:
            self.plant.connect(pairs, now)
        else:
            self._set += pairs

    def _find(self, texts: Fields) -> Connection:
        name = texts.get("conn", "") or texts.get("name", "")
        found = self.table.get(name)
        if found is None or texts.get("group", found.group) not in ("", found.group):
            raise Failed("Invalid connection", name[:80])
        return found

    def _break(self, connection: Connection, now: float) -> None:
        if lock := self.table.lock(connection):
            raise Failed("Operation failed", lock)
        refused = {} if self.silent else self.plant.disconnect(connection.pairs, now)
        if refused:
            raise Failed("Operation failed", next(iter(refused.values())))

    def _delete(self, texts: Fields, now: float) -> str:
        connection = self._find(texts)
        self._break(connection, now)
        if not self.silent:
            self.table.remove(connection)
        return f"Connection {connection.name} deleted"

    def _activate(self, texts: Fields, now: float) -> str:
        connection = self._find(texts)
        if connection.active:
            raise Failed("Invalid state", f"{connection.name} is active")
        self._possible(connection)
        if not self.silent:
            self._advance(connection, now)
        return f"Connection {connection.name} activated"

    def _deactivate(self, texts: Fields, now: float) -> str:
        connection = self._find(texts)
        if not connection.active:
            raise Failed("Invalid state", f"{connection.name} is not active")
        self._break(connection, now)
        connection.active = self.silent
        return f"Connection {connection.name} deactivated"

    def _delete_all(self, asked: Request, now: float) -> object:
        stuck = []
        for connection in self.some(list(self.table)):
            try:
                self._delete({"conn": connection.name}, now)
            except Failed:
                stuck.append(connection.name)
        if stuck:
            raise Failed("Operation failed", ", ".join(stuck)[:200])
        return [verdict("1", "All connections deleted")]

    def _configure(self, texts: Fields, now: float) -> str:
        """Aliases and administrative state of a port, by the names of its detail (U)."""
        port = texts.get("port", "")
        if port not in self.table.ports:
            raise Failed("Invalid port", port[:40])
        known = {f"{which}{what}" for which in ("in", "out") for what in ("alias", "as")}
        if not known & set(texts) or any(
            texts.get(f"{which}as", "IS") not in ("IS", "OOS") for which in ("in", "out")
        ):
            raise Failed("Invalid body", "inalias, outalias, inas or outas is wanted")
        for which in ("in", "out") if not self.silent else ():
            if f"{which}alias" in texts:
                self._aliases[which, port] = texts[f"{which}alias"][:64]
            if f"{which}as" in texts:
                self.plant.set_disabled([(which, port)], texts[f"{which}as"] == "OOS", now)
        return f"Port {port} configured"

    def _swagger(self) -> Mapping[str, object]:
        """A list of what there is; the device's own document is longer (CODE that there is one, and
        its basePath).
        """
        paths: dict[str, dict[str, object]] = {}
        for method, resource, asked in self._operations:
            paths.setdefault(f"/{resource}/?id={asked}", {})[method.lower()] = {
                "responses": {"200": {"description": "OK"}}
            }
        return {
            "swagger": "2.0",
            "info": {"title": self.model, "version": self.firmware},
            "basePath": "/rest",
            "paths": paths,
        }


def verdict(status: str, msg: str, description: str = "") -> dict[str, str]:
    return {"status": status, "msg": msg, "description": description}


def all_text(given: Mapping[object, object]) -> dict[str, str]:
    """All values are text; a number or a truth value is taken as its text (U)."""
    return {
        str(name): value if isinstance(value, str) else json.dumps(value)[:4096]
        for name, value in given.items()
    }


FAMILY = Family(
    "calient-rest",
    ("http",),
    CalientRest,
    lambda ingress, egress: (aids(ingress), aids(egress)),
    preset_by("dir", KINDS),
    bulk_settle_s=0.2,
    login=("admin", "emulated"),
    square=True,
    styles=STYLES,
)
