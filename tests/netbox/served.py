"""A NetBox for tests: an HTTP server that answers from lists of objects as NetBox answers, by pages.

answers/*.json were recorded from NetBox 4.7.3 (PyPI `netbox`) after `populated` had made its lab there.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

RECORDED = Path(__file__).parent / "answers"
LISTS = ("devices", "cables", "interfaces", "front-ports", "rear-ports")
TOKEN = "0123456789abcdef0123456789abcdef01234567"
MAX_PAGE = 1000  # MAX_PAGE_SIZE of NetBox, unless its administrator changed it


def recorded() -> dict[str, list[Any]]:
    return {name: json.loads((RECORDED / f"{name}.json").read_text()) for name in LISTS}


class Served:
    """What the server has, what it was asked for, and how it misbehaves."""

    def __init__(self, lists: Mapping[str, list[Any]]) -> None:
        self.lists = {name: list(rows) for name, rows in lists.items()}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.patched: list[Any] = []
        self.raw: dict[str, tuple[int, Mapping[str, str], bytes]] = {}
        """Instead of a list: status, headers and body."""
        self.url = ""

    def page(self, name: str, given: Mapping[str, str]) -> dict[str, Any]:
        rows = self.lists[name]
        limit = min(int(given.get("limit", 50)), MAX_PAGE)
        at = int(given.get("offset", 0))
        more = at + limit < len(rows)
        where = f"{self.url}/api/dcim/{name}/?limit={limit}&offset="
        return {
            "count": len(rows),
            "next": f"{where}{at + limit}" if more else None,
            "previous": f"{where}{max(0, at - limit)}" if at else None,
            "results": rows[at : at + limit],
        }

    def patch(self, rows: Any) -> list[Any]:
        self.patched += rows
        cables = {cable["id"]: cable for cable in self.lists["cables"]}
        for row in rows:
            cables[row["id"]]["custom_fields"] |= row["custom_fields"]
        return [cables[row["id"]] for row in rows]


@contextmanager
def serving(lists: Mapping[str, list[Any]]) -> Iterator[Served]:
    served = Served(lists)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                pass  # the client had enough

        def _any(self, method: str) -> None:
            url = urlsplit(self.path)
            given = dict(parse_qsl(url.query))
            name = url.path.removeprefix("/api/dcim/").strip("/")
            served.asked.append((method, name, given))
            if name in served.raw:
                return self._answer(*served.raw[name])
            as_json = {"Content-Type": "application/json"}
            if self.headers.get("Authorization") != f"Token {TOKEN}":
                return self._answer(403, as_json, b'{"detail": "Invalid token"}')
            if name not in served.lists:
                return self._answer(404, as_json, b'{"detail": "Not found."}')
            body: Any = (
                served.page(name, given)
                if method == "GET"
                else served.patch(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            )
            return self._answer(200, as_json, json.dumps(body).encode())

        def do_GET(self) -> None:
            self._any("GET")

        def do_PATCH(self) -> None:
            self._any("PATCH")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def populated(api: Any, mark: str) -> None:
    """Make a lab in a real NetBox, in a site called `mark`.

    Four hosts: eth1 by duplex fibres over two panels and a trunk of four positions to ocs1; eth2 of
    three by a rear port of two positions and single strands to ocs2, of the fourth by a cable with
    two ends; eth3 to a packet switch. The fibre of gpu04 eth1 ends in the second panel. A simplex
    cable leads from ocs2 to ocs1.
    """
    d = api.dcim
    site = d.sites.create(name=mark, slug=mark).id
    maker = d.manufacturers.create(name=mark, slug=mark).id
    role = d.device_roles.create(name=mark, slug=mark).id
    kind = d.device_types.create(manufacturer=maker, model=mark, slug=mark).id

    def device(name: str, context: Any = None) -> int:
        given = {"local_context_data": {"testbed": context}} if context is not None else {}
        made = d.devices.create(name=name, site=site, role=role, device_type=kind, **given)
        return int(made.id)

    def port(of: int, name: str, **more: Any) -> tuple[str, int]:
        made = d.interfaces.create(device=of, name=name, type="25gbase-x-sfp28", **more)
        return "dcim.interface", int(made.id)

    def rear(of: int, name: str, positions: int) -> int:
        return int(d.rear_ports.create(device=of, name=name, type="mpo", positions=positions).id)

    def front(of: int, name: str, behind: int, position: int) -> tuple[str, int]:
        ends = [{"position": 1, "rear_port": behind, "rear_port_position": position}]
        made = d.front_ports.create(device=of, name=name, type="lc", positions=1, rear_ports=ends)
        return "dcim.frontport", int(made.id)

    def cable(a: Any, *b: Any, **more: Any) -> None:
        ends = [[{"object_type": t, "object_id": n} for t, n in side] for side in ((a,), b)]
        d.cables.create(a_terminations=ends[0], b_terminations=ends[1], **more)

    ocs1 = device("ocs1", {"driver": "calient-tl1", "address": "tcp://192.0.2.32:3082"})
    ocs2 = device("ocs2", {"driver": "polatis-scpi", "address": "tcp://192.0.2.31:5025"})
    leaf, a, b = device("leaf1"), device("panel-a"), device("panel-b")
    trunks = rear(a, "R1", 4), rear(b, "R1", 4)
    cable(("dcim.rearport", trunks[0]), ("dcim.rearport", trunks[1]), length=30, length_unit="m")
    for n in range(1, 5):
        host = device(f"gpu0{n}", {"host_id": 10 + n})
        eths = [port(host, f"eth{i}", label=str(i) if i < 3 else "") for i in (1, 2, 3)]
        near, far = front(a, f"F{n}", trunks[0], n), front(b, f"F{n}", trunks[1], n)
        cable(eths[0], near, label=f"fibre-{n}", length=200, length_unit="cm")
        if n < 4:
            cable(far, port(ocs1, f"1.1.{n}"), length=2, length_unit="m")
        strands = port(ocs2, str(n)), port(ocs2, str(n + 4))
        if n < 4:
            duplex = rear(a, f"D{n}", 2)
            cable(eths[1], ("dcim.rearport", duplex))
            cable(front(a, f"D{n}-TX", duplex, 1), strands[0])
            cable(front(a, f"D{n}-RX", duplex, 2), strands[1])
        else:
            cable(eths[1], *strands)
        cable(eths[2], port(leaf, f"swp{n}"))
    cable(port(ocs2, "9"), port(ocs1, "1.2.1"))


def emptied(api: Any, mark: str) -> None:
    """Take away what `populated` made."""
    d = api.dcim
    for cable in list(d.cables.filter(site=mark)):
        cable.delete()
    for endpoint in (d.devices, d.device_types, d.device_roles, d.manufacturers, d.sites):
        key = "site" if endpoint is d.devices else "slug"
        for row in list(endpoint.filter(**{key: mark})):
            row.delete()
