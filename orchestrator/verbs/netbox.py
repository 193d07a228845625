"""NetBox over its REST API, and the light that the devices see of NetBox's cabling.

The library (`pynetbox`) is imported here only. NetBox is not trusted: pages, their bytes and the
objects of a list are bounded, no redirection is followed, and no address that an answer names is
asked.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from drivers.api import CircuitSwitch, PowerMeter
from optics import Dbm, DeviceName, Port
from optics.errors import Garbled, Missing, Refused, Unreachable, Usage
from optics.extras import extra
from optics.plain import did_you_mean, printable
from orchestrator.fabric.lightpath import LightMap
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.netbox import Answers
from orchestrator.session import Command
from orchestrator.verify.power import LOS_DBM

PAGE = 1000
"""Objects of a page: what NetBox gives at most, unless its administrator changed it."""
MOST_OBJECTS = 100_000
"""Objects of a list: several times the ports of the largest fabric."""
MOST_BYTES = 64 << 20
"""Bytes of a page; 1000 cables take 1.4 MB."""
TIMEOUT_S = 30.0
"""Longest silence of NetBox (s)."""
ANSWER_S = 120.0
"""Longest time for a whole answer (s)."""
AT_ONCE = 200
"""Cables that one request changes."""
MOST_TEXT = 500
"""Characters that are written to a cable."""


class NetBox:
    """A NetBox reached with a token.

    Every call raises: Unreachable - no answer. Refused - NetBox refused, in its own words. Garbled -
    the server is not NetBox, or answers more than is read.
    """

    def __init__(self, url: str, token: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Raises: Usage - no URL or token. Missing - the library is not installed."""
        parts = urlsplit(url)
        if not re.fullmatch(r"https?://[\w.:\[\]-]+(/[^\s?#@]*)?", url) or not parts.hostname:
            raise Usage(
                f"--url: {printable(url)!r} is not the URL of a NetBox",
                hint="such as https://netbox.lab",
            )
        if not re.fullmatch(r"[!-~]+", token):
            raise Usage("the token is not one of NetBox's", hint="make one under API Tokens")
        with extra("netbox", "NetBox"):
            import pynetbox
        self.url = url.rstrip("/").removesuffix("/api")
        self._api = pynetbox.api(self.url, token=token)
        self._api.http_session = _session(timeout_s)

    def answers(self, filters: Mapping[str, Any]) -> Answers:
        """The lists that a lab's cabling is in; filters: which devices."""
        cabled = {"cabled": "true"}
        return Answers(
            self._list("devices", filters),
            self._list("cables", {}),
            self._list("interfaces", cabled),
            self._list("front_ports", cabled),
            self._list("rear_ports", cabled),
        )

    def _list(self, name: str, filters: Mapping[str, Any]) -> list[Any]:
        """A list, page after page: by number, whatever the answer says where the next one is."""
        endpoint = getattr(self._api.dcim, name)
        found: list[Any] = []
        while True:
            page = {"limit": PAGE, "offset": len(found)}
            with self._asked(f"read {name}"):
                rows = (
                    endpoint.filter(**filters, **page, strict_filters=False)
                    if filters
                    else endpoint.all(**page)
                )
                # as JSON: an object of the library would ask NetBox again for what it lacks
                part = list(rows.request.get())
                count = getattr(rows.request, "count", None)
            if not isinstance(count, int):
                raise Garbled(f"{self.url}: the answer to {name} is not a list of NetBox's")
            if max(count, len(found) + len(part)) > MOST_OBJECTS:
                raise Garbled(
                    f"{self.url}: {count} {name}, at most {MOST_OBJECTS} are read",
                    hint="choose a part of the devices by --filter site=NAME",
                )
            found += part
            if len(found) >= count:
                return found
            if not part:
                raise Garbled(
                    f"{self.url}: {count} {name} announced, the list ends at {len(found)}"
                )

    def write(self, field: str, texts: Mapping[int, str | None]) -> None:
        """Write a custom field of cables, by number; None: empty it."""
        rows = [{"id": number, "custom_fields": {field: text}} for number, text in texts.items()]
        for at in range(0, len(rows), AT_ONCE):
            with self._asked(f"write {field} of cables"):
                self._api.dcim.cables.update(rows[at : at + AT_ONCE])

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        import pynetbox
        import requests

        try:
            yield
        except pynetbox.RequestError as error:
            status = error.req.status_code
            message = " ".join(str(error.req.text).split())[:200]
            hints = {
                401: "make a token under API Tokens; pass it in TESTBED_NETBOX_TOKEN",
                403: "the token may not do that, or is not known; pass it in TESTBED_NETBOX_TOKEN",
                301: "give the URL that NetBox itself has (https?)",
                302: "give the URL that NetBox itself has (https?)",
            }
            raise Refused(
                printable(f"{self.url} refused to {what}: {status} {message}"),
                hint=hints.get(status, "nothing was written to the inventory"),
            ) from None
        except _TooMuch as error:
            raise Garbled(f"{self.url}: wanted to {what}, {error}") from None
        # the library fails in many ways where an answer is not NetBox's
        except (
            pynetbox.ContentError,
            KeyError,
            TypeError,
            AttributeError,
            ValueError,
            RecursionError,
        ):
            raise Garbled(
                f"{self.url}: wanted to {what}, the answer is not NetBox's",
                hint="is this the URL of NetBox itself?",
            ) from None
        except requests.RequestException as error:
            raise Unreachable(
                printable(f"{self.url}: wanted to {what}, no answer ({type(error).__name__})"),
                hint="start NetBox, or correct --url (TESTBED_NETBOX_URL)",
            ) from None


class _TooMuch(Exception):
    """An answer larger than what is read."""


def _session(timeout_s: float) -> Any:
    """A session whose answers are bounded in size and time; it follows no redirection and uses no
    login of ~/.netrc.
    """
    import pynetbox
    import requests

    class Bounded(requests.Session):  # type: ignore[misc]
        def send(self, request: Any, **options: Any) -> Any:
            until = time.monotonic() + ANSWER_S
            options |= {"stream": True, "allow_redirects": False, "timeout": timeout_s}
            reply = super().send(request, **options)
            body = bytearray()
            with reply:
                for piece in reply.iter_content(1 << 16):
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise _TooMuch(f"the answer has more than {MOST_BYTES >> 20} MB")
                    if time.monotonic() > until:
                        raise requests.ReadTimeout
            reply._content = bytes(body)  # what `content` and `json()` give
            if reply.is_redirect:
                raise pynetbox.RequestError(reply)
            return reply

    session = Bounded()
    session.auth = lambda request: request
    return session


@dataclass(frozen=True, slots=True)
class LightReport:
    """NetBox's cabling and the light at the devices' inputs. wrong: where they differ; measured: so
    many inputs with a cable from a host have a meter.
    """

    wrong: tuple[str, ...]
    measured: int
    cabled: int


async def cabling_by_light(command: Command, lab: Lab) -> LightReport:
    """Compare the fibres with the light that enters the devices. Which host sent it does not show:
    `testbed verify` asks for signed frames. Raises: TestbedError - a device does not answer.
    """
    async with command.opened(lab, "lab import netbox") as session:
        found = dict(
            await asyncio.gather(
                *(_entering(name, device, lab) for name, device in session.devices.items())
            )
        )
    light = {port: power for ports in found.values() for port, power in ports.items()}
    wrong, measured = [], 0
    inputs = {fibre.enters for fibre in lab.fibres.values()}
    for host, fibre in lab.fibres.items():
        power = light.get(fibre.enters)
        if not found.get(fibre.device):
            continue  # has no meters
        measured += 1
        if power is None or power < LOS_DBM:
            wrong.append(
                f"no light enters {fibre.enters}: fibre {fibre.name} is elsewhere or dark, or {host} does not send"
            )
    known = inputs | {trunk.end for trunk in lab.trunks}
    leaves = {fibre.leaves: fibre.name for fibre in lab.fibres.values()}
    for port, power in light.items():
        if power >= LOS_DBM and port not in known:
            swapped = (
                f", where light of fibre {leaves[port]} leaves by NetBox" if port in leaves else ""
            )
            wrong.append(
                f"light enters {port} ({power:.1f} dBm){swapped or ', and NetBox has no cable there'}"
            )
    return LightReport(tuple(wrong), measured, len(lab.fibres))


async def _entering(
    name: DeviceName, device: CircuitSwitch, lab: Lab
) -> tuple[DeviceName, Mapping[Port, Dbm]]:
    """The power at every input that the device measures."""
    if not isinstance(device, PowerMeter):
        return name, {}
    identity = await device.identify()
    both = set(identity.egress)
    asked = {
        Port(name, f"{label}:in" if label in both else label): Port(name, label)
        for label in identity.ingress
    }
    power = await device.power(asked)
    return name, {asked[port]: dbm for port, dbm in power.items() if port in asked}


async def circuits_on_cables(
    command: Command, lab: Lab, cables: Mapping[str, tuple[tuple[int, ...], ...]]
) -> dict[int, str | None]:
    """The circuits that the devices hold, by the number of each cable they lead through; None: none
    does. Raises: TestbedError - a device does not answer.
    """
    async with command.opened(lab, "lab import netbox") as session:
        held = (await session.observe(hosts=False)).complete().settings
    on: dict[int, list[str]] = {
        number: [] for strands in cables.values() for strand in strands for number in strand
    }
    for trace in LightMap(held, lab).traces():
        if trace.receiver is None:
            continue
        passed = set(cables[lab.fibres[trace.transmitter].name][0])
        passed |= set(cables[lab.fibres[trace.receiver].name][-1])
        for setting in trace.path[:-1]:
            passed |= set(cables[lab.onward[setting.egress].name][0])
        for number in passed:
            on[number].append(f"{trace.transmitter}->{trace.receiver}")
    return {number: _listed(circuits) for number, circuits in on.items()}


def _listed(circuits: list[str]) -> str | None:
    text = ", ".join(circuits)
    if len(text) <= MOST_TEXT:
        return text or None
    kept = text[: MOST_TEXT - 20].rpartition(", ")[0]
    return f"{kept}, {len(circuits) - kept.count(', ') - 1} more"


def to_write(
    field: str, texts: Mapping[int, str | None], fields: Mapping[int, Mapping[str, Any]]
) -> dict[int, str | None]:
    """What differs from what the cables have now. Raises: Missing - cables have no such field."""
    known: Collection[str] = {name for each in fields.values() for name in each}
    if field not in known:
        raise Missing(
            f"cables have no custom field {field} in NetBox{did_you_mean(field, known)}",
            hint="add it under Customization, Custom Fields: object type cable, type text",
        )
    return {
        number: text
        for number, text in texts.items()
        if (fields.get(number, {}).get(field) or None) != text
    }
