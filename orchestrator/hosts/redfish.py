"""A host's management controller by Redfish (DMTF DSP0266): its power state and health, and a reset.

Only what the client needs is read, of the ComputerSystem resource and its action (DSP0268). Where
the BMC lists the resets it allows, inline or as ActionInfo, one of them is chosen. Login is HTTP
Basic, which DSP0266 asks of every service: nothing to close if this program is killed. What a BMC
says is not trusted: answers are bounded, redirects refused, paths must be below /redfish/v1.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from drivers.link.http import Answer, HttpLink
from drivers.wire.rest import Json, mapping, parse_json, quote, rows
from optics import Garbled, HostName, Missing, Refused, TestbedError, TimedOut
from optics.plain import printable
from orchestrator.inventory.logins import Bmc

SYSTEMS = "/redfish/v1/Systems"
RESET = "#ComputerSystem.Reset"
_PATH = re.compile(r"/redfish/v1(/(?!\.)[A-Za-z0-9._~:+-]+)+/?")
MOST_BYTES = 1 << 20
"""Of an answer; a ComputerSystem has some 10 kB."""
LONGEST_TEXT = 200
QUESTIONS = 3
"""The state is read in this many; each may be silent for `timeout_s`, and all of them not longer."""
STATES = frozenset({"On", "Off", "PoweringOn", "PoweringOff", "Paused"})
"""PowerState (DSP0268, Resource); other words would go into the audit as if this program wrote them."""
CYCLE, ON = ("PowerCycle", "ForceRestart"), ("On",)
"""Resets for each wish, the better first: a power cycle also ends what hangs in a card. The last is
requested of a BMC that does not say what it allows: all known ones take it, older ones no
PowerCycle.
"""


@dataclass(frozen=True, slots=True)
class PowerState:
    """What a BMC says of its host. power: one of STATES, else unknown. health: OK, Warning,
    Critical; empty where it does not say.

    target: where a reset is sent; empty: it offers none. resets: those it allows, empty: it does
    not say.
    """

    power: str
    health: str
    model: str
    target: str
    resets: tuple[str, ...]


class Redfish:
    """Questions to the BMC of `host`. Raises, everywhere: Unreachable, TimedOut, Garbled - it is
    not there or no Redfish service. Refused - login, rights, or its state.
    """

    def __init__(self, host: HostName, bmc: Bmc, password: str) -> None:
        self._bmc = bmc
        self._who = f"BMC of {host}"
        self._link = HttpLink(
            self._who,
            bmc.address,
            bmc.timeout_s,
            username=bmc.username,
            password=password,
            ca_file=bmc.ca_file,
            ca_option="testbed_bmc.ca_file in hosts.yml",
        )

    async def read(self) -> PowerState:
        """The state of the host's power. Raises: Missing - no such system, or several."""
        within_s = QUESTIONS * self._bmc.timeout_s
        try:
            async with asyncio.timeout(within_s):
                with self._named():
                    return await self._read()
        except TestbedError:
            raise
        except TimeoutError:  # each answer came, but bit by bit
            raise TimedOut(f"{self._who}: no whole power state in {within_s:g} s") from None

    async def _read(self) -> PowerState:
        found = await self._get(await self._system())
        actions = mapping(found.get("Actions", {}), "Actions")
        action = mapping(actions.get(RESET, {}), RESET)
        names = (_or_empty(found, key) for key in ("Manufacturer", "Model"))
        power = _or_empty(found, "PowerState")
        return PowerState(
            power=power if power in STATES else "unknown",
            health=_short(_or_empty(found.get("Status") or {}, "Health")),
            model=_short(" ".join(filter(None, names))),
            target=_path(action["target"]) if "target" in action else "",
            resets=await self._resets(action),
        )

    async def reset(self, state: PowerState, wanted: tuple[str, ...]) -> tuple[str, str]:
        """Request the first of the `wanted` resets that it allows; return that and its answer. Sent
        once, never again: where the answer is lost, the host may reset all the same.

        Raises: Refused - it allows none of them. Unreachable - nothing was sent.
        """
        kind = next((kind for kind in wanted if kind in state.resets), "")
        if not state.target or (state.resets and not kind):
            offered = ", ".join(state.resets) or "no reset"
            raise Refused(f"{self._who} offers {offered}; wanted {' or '.join(wanted)}")
        kind = kind or wanted[-1]
        try:
            answer = await self._link.exchange(
                "POST",
                state.target,
                question=f"POST {state.target} {kind}",
                body=json.dumps({"ResetType": kind}).encode(),
                headers={"Content-Type": "application/json"},
            )
        except (TimedOut, Garbled):
            return kind, "no answer"
        if answer.status not in (200, 201, 202, 204):
            raise self._refused(answer, f"to reset ({kind})")
        said = redfish_message(answer.body)
        return kind, f"HTTP {answer.status}" + (f": {said}" if said else "")

    async def close(self) -> None:
        await self._link.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except Garbled as error:
            if str(error).startswith(self._who):
                raise
            raise Garbled(f"{self._who}: {error}") from None

    async def _system(self) -> str:
        members = rows((await self._get(SYSTEMS)).get("Members"), "Members")
        paths = [_path(member.get("@odata.id")) for member in members]
        names = [path.rstrip("/").rpartition("/")[2] for path in paths]
        wanted = self._bmc.system
        chosen = [p for p, name in zip(paths, names, strict=True) if wanted in ("", name)]
        if len(chosen) == 1:
            return chosen[0]
        raise Missing(
            f"{self._who} has {f'no system {wanted}' if wanted else f'{len(names)} systems'}: "
            f"{', '.join(names[:8]) or 'none'}",
            hint="name the host's in hosts.yml: testbed_bmc: {system: ...}",
        )

    async def _resets(self, action: Json) -> tuple[str, ...]:
        found = mapping(action, RESET)
        allowed = found.get("ResetType@Redfish.AllowableValues")
        if allowed is None and "@Redfish.ActionInfo" in found:
            try:
                info = await self._get(_path(found["@Redfish.ActionInfo"]))
                parameters = rows(info.get("Parameters", []), "Parameters")
            except (Refused, Garbled):  # optional, DSP0266
                return ()
            resets = [p for p in parameters if p.get("Name") == "ResetType"]
            allowed = resets[0].get("AllowableValues") if resets else None
        if allowed is None:
            return ()
        if not isinstance(allowed, list):
            raise Garbled(f"AllowableValues is no list: {quote(repr(allowed))}")
        return tuple(_short(str(each)) for each in allowed[:32])

    async def _get(self, path: str) -> dict[str, Json]:
        question = f"GET {path}"
        answer = await self._link.exchange(
            "GET", path, question=question, headers={"Accept": "application/json"}
        )
        if answer.status != 200:
            raise self._refused(answer, f'"{question}"')
        if len(answer.body) > MOST_BYTES:
            raise Garbled(
                f'{self._who}: the answer to "{question}" has more than {MOST_BYTES} bytes'
            )
        try:
            return dict(mapping(parse_json(answer.body), "the answer"))
        except Garbled as error:
            raise Garbled(f'{self._who}: answer to "{question}": {error}') from None

    def _refused(self, answer: Answer, what: str) -> TestbedError:
        said = redfish_message(answer.body)
        text = f"{self._who} answers {what} with HTTP {answer.status}" + (
            f": {said}" if said else ""
        )
        if answer.status in (401, 403):
            hint = "username and password of testbed_bmc in hosts.yml"
            return Refused(f"{text} (user {self._bmc.username!r})", hint=hint)
        if answer.status == 404:
            return Garbled(text, hint="is testbed_bmc's address that of a Redfish service?")
        if 300 <= answer.status < 400:
            to = quote(answer.headers.get("location", "nowhere"))
            return Garbled(
                f"{text}; it leads to {to}", hint="write that address in hosts.yml, if it is right"
            )
        return Refused(text)


def redfish_message(body: bytes) -> str:
    """What a Redfish error or success says (DSP0266, error responses), one short line.

    >>> redfish_message(b'{"error": {"@Message.ExtendedInfo": [{"Message": "Server is already powered ON."}]}}')
    'Server is already powered ON.'
    """
    try:
        found = mapping(parse_json(body[:MOST_BYTES]), "body")
        error = mapping(found.get("error", found), "error")
        infos = rows(error.get("@Message.ExtendedInfo", []), "ExtendedInfo")
        said = [_or_empty(i, "Message") or _or_empty(i, "MessageId") for i in infos[:4]]
        return _short("; ".join(filter(None, said)) or _or_empty(error, "message"))
    except Garbled:
        return ""


def _path(value: Json) -> str:
    """A path that a BMC gave. Raises: Garbled - it leads elsewhere, to another host perhaps."""
    if not isinstance(value, str) or len(value) > 512 or not _PATH.fullmatch(value):
        raise Garbled(f"{quote(repr(value))} is no path below /redfish/v1")
    return value


def _or_empty(found: Json, key: str) -> str:
    value = mapping(found, key).get(key)
    return printable(value, keep="") if isinstance(value, str) else ""


def _short(word: str) -> str:
    word = printable(word, keep="")
    return word if len(word) <= LONGEST_TEXT else f"{word[:LONGEST_TEXT]}..."
