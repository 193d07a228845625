"""NETCONF (RFC 6241, over SSH RFC 6242): hello, framing, the operations, errors; the family brings
the data.

Not here: candidate and startup datastores, notifications one could subscribe to, XPath filters: no
public client of an emulated family uses them; asking for them is answered operation-not-supported.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from lxml import etree

from emulators.devices.dialects.base import Dialect, Outgoing, Session
from emulators.devices.dialects.netconf_data import RpcError, Schema, edited, keys_of, selected
from emulators.devices.dialects.netconf_framing import MAX_MESSAGE, Decoder, Unframed, encode
from emulators.devices.dialects.xml import NETCONF, Malformed, element, local, namespace, read, text
from emulators.optics.plant import Plant

State = TypeVar("State")
BASE_1_0, BASE_1_1 = "urn:ietf:params:netconf:base:1.0", "urn:ietf:params:netconf:base:1.1"
WRITABLE_RUNNING = "urn:ietf:params:netconf:capability:writable-running:1.0"
ROLLBACK = "urn:ietf:params:netconf:capability:rollback-on-error:1.0"
VALIDATE = "urn:ietf:params:netconf:capability:validate:1.1"
NOTIFICATION = "urn:ietf:params:xml:ns:netconf:notification:1.0"
MAX_WAITING = 32  # messages sent ahead
MAX_FILTER = 2000  # elements
_BASE: Mapping[str | None, str] = {None: NETCONF}
_NOTIFICATION: Mapping[str | None, str] = {None: NOTIFICATION}

__all__ = [
    "BASE_1_0",
    "BASE_1_1",
    "NETCONF",
    "ROLLBACK",
    "VALIDATE",
    "WRITABLE_RUNNING",
    "NetconfDialect",
    "RpcError",
    "Schema",
]


@dataclass(slots=True)
class Peer:
    """The device's state of one client."""

    decoder: Decoder = field(default_factory=Decoder)
    greeted: bool = False
    chunked: bool = False


class NetconfDialect(Dialect[State]):
    """A device with a NETCONF server.

    A family gives `capabilities` (of its modules), `schemas` (of its configuration, by the tag of
    each top node), `configuration`, `state` and `configure`; further operations in `operation`.
    base_1_1: whether the device speaks base:1.1 too.
    """

    longest = MAX_MESSAGE * 2
    schemas: Mapping[str, Schema] = {}
    validates = False
    rolls_back = True

    def __init__(
        self,
        plant: Plant,
        *,
        base_1_1: bool = True,
        epoch_s: float = 0.0,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(plant, seed=seed, idle_s=idle_s, boot_s=boot_s)
        self.base_1_1, self.epoch_s = base_1_1, epoch_s
        self.lock: Session | None = None
        self._peers: dict[Session, Peer] = {}
        self._ending: set[Session] = set()
        # local names of the top nodes the request being done is about; None: all
        self.tops: frozenset[str] | None = None
        # keys of the list entries in these that an edit is about; None: all
        self.keys: frozenset[str] | None = None
        self._chunked = False  # as the session that is being answered does

    # ---- defined by a family

    @abstractmethod
    def capabilities(self) -> Sequence[str]:
        """Return the URIs of the modules and whatever else the hello lists after the base."""

    @abstractmethod
    def configuration(self, now: float) -> list[etree._Element]:
        """Return the running configuration, its top nodes; only those in `tops`. Others than `keys`
        may be left out.
        """

    @abstractmethod
    def configure(self, config: list[etree._Element], now: float) -> None:
        """Make `config` the running configuration, as far as `tops` goes; entries that
        `configuration` left out stay.

        Raises: RpcError - as far as the device gets then.
        """

    def state(self, now: float) -> list[etree._Element]:
        """Return configuration and state, as <get> shows them; see `tops`."""
        return self.configuration(now)

    def operation(
        self, session: Session, asked: etree._Element, now: float
    ) -> list[etree._Element] | None:
        """Do an operation of the family's own modules; None: there is no such. An empty list is
        answered <ok/>.
        """
        return None

    def event(self, now: float) -> etree._Element:
        """Return the content of an unsolicited notification."""
        return etree.Element(f"{{{NOTIFICATION}}}event")

    # ---- the manner

    def open(self, now: float) -> Session | None:
        session = super().open(now)
        if session is not None:
            self._peers[session] = Peer()
            hello = element(f"{{{NETCONF}}}hello", _BASE)
            listed = etree.SubElement(hello, f"{{{NETCONF}}}capabilities")
            offered = [BASE_1_0, *([BASE_1_1] if self.base_1_1 else []), WRITABLE_RUNNING]
            offered += [
                *([ROLLBACK] if self.rolls_back else []),
                *([VALIDATE] if self.validates else []),
            ]
            for uri in (*offered, *self.capabilities()):
                etree.SubElement(listed, f"{{{NETCONF}}}capability").text = uri
            etree.SubElement(hello, f"{{{NETCONF}}}session-id").text = str(session.number)
            self.send(session, now, encode(_bytes(hello), False))
        return session

    def close(self, session: Session) -> None:
        super().close(session)
        self._peers.pop(session, None)
        self._ending.discard(session)
        if self.lock is session:
            self.lock = None

    def split(self, session: Session) -> list[str]:
        peer = self._peers[session]
        peer.decoder.feed(session.buffer)
        session.buffer = b""
        commands: list[str] = []
        try:
            while (message := peer.decoder.next()) is not None:
                if not peer.greeted:
                    self._greeted(session, peer, message)
                else:
                    commands.append(message.decode("utf-8", "surrogateescape"))
                if len(commands) + len(session.queue) > MAX_WAITING:
                    raise Unframed("too many messages at once")
        except (Unframed, Malformed):
            self._hang_up(session, session.last_s)
            return []
        return commands

    def execute(self, session: Session, command: str, now: float) -> bytes:
        return self._reply(session, command, now, refused=False)

    def refuse(self, session: Session, command: str, now: float) -> bytes:
        return self._reply(session, command, now, refused=True)

    def unsolicited(self, now: float) -> bytes:
        event = element(f"{{{NOTIFICATION}}}notification", _NOTIFICATION)
        stamp = datetime.fromtimestamp(self.epoch_s + now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        etree.SubElement(event, f"{{{NOTIFICATION}}}eventTime").text = stamp
        event.append(self.event(now))
        return encode(_bytes(event), self._chunked)

    def step_clock(self, seconds: float) -> None:
        self.epoch_s += seconds

    def drain(self) -> list[Outgoing]:
        """End the sessions whose last reply has been sent."""
        out = super().drain()
        for session in tuple(self._ending):
            times = [at for whose, at, data in out if whose is session and data]
            if times and not session.held:
                session.cut = True
                out.append((session, max(times), None))
                self._ending.discard(session)
        return out

    # ---- the operations

    def _do(self, session: Session, asked: etree._Element, now: float) -> list[etree._Element]:
        if namespace(str(asked.tag)) == NETCONF:
            done = _OPERATIONS.get(local(str(asked.tag)))
            if done is not None:
                return done(self, session, asked, now)
        elif (answer := self.operation(session, asked, now)) is not None:
            return answer
        raise RpcError(
            "operation-not-supported", f"no operation {local(str(asked.tag))}", kind="protocol"
        )

    def _get(self, session: Session, asked: etree._Element, now: float) -> list[etree._Element]:
        self._look(asked)
        return [self._data(self.state(now), asked)]

    def _get_config(
        self, session: Session, asked: etree._Element, now: float
    ) -> list[etree._Element]:
        self._running(asked, "source")
        self._look(asked)
        return [self._data(self.configuration(now), asked)]

    def _edit_config(
        self, session: Session, asked: etree._Element, now: float
    ) -> list[etree._Element]:
        self._running(asked, "target")
        default = self._choice(asked, "default-operation", ("merge", "replace", "none"))
        self._choice(
            asked, "test-option", ("test-then-set", "set", "test-only") if self.validates else ()
        )
        options = (
            "stop-on-error",
            "continue-on-error",
            *(("rollback-on-error",) if self.rolls_back else ()),
        )
        self._choice(asked, "error-option", options)
        config = asked.find(f"{{{NETCONF}}}config")
        if config is None:
            raise RpcError(
                "missing-element",
                "config is missing",
                kind="protocol",
                info={"bad-element": "config"},
            )
        self._free(session)
        stale, self._stale = self._stale, None  # a device that shows what was still knows what is
        try:
            self.tops = (
                None if default == "replace" else frozenset(local(str(node.tag)) for node in config)
            )
            self.keys = None if default == "replace" else keys_of(config, self.schemas)
            old = [] if default == "replace" else self.configuration(now)
            new = edited(old, config, default if default == "none" else "merge", self.schemas)
            self.wrote(now)
            if text_of(asked, "test-option") != "test-only":
                self.configure(new, now)
        finally:
            self._stale = stale
        return []

    def _lock(self, session: Session, asked: etree._Element, now: float) -> list[etree._Element]:
        self._running(asked, "target")
        if self.lock is not None:
            holder = str(self.lock.number)
            raise RpcError(
                "lock-denied",
                "the lock is already held",
                kind="protocol",
                info={"session-id": holder},
            )
        self.lock = session
        return []

    def _unlock(self, session: Session, asked: etree._Element, now: float) -> list[etree._Element]:
        self._running(asked, "target")
        if self.lock is not session:
            raise RpcError(
                "operation-failed", "this session does not hold the lock", kind="protocol"
            )
        self.lock = None
        return []

    def _close_session(
        self, session: Session, asked: etree._Element, now: float
    ) -> list[etree._Element]:
        self._ending.add(session)
        return []

    def _kill_session(
        self, session: Session, asked: etree._Element, now: float
    ) -> list[etree._Element]:
        wanted = text_of(asked, "session-id")
        victim = next((s for s in self.sessions if str(s.number) == wanted), None)
        if victim is None or victim is session:
            raise RpcError(
                "invalid-value",
                f"session-id {wanted}",
                kind="protocol",
                info={"bad-element": "session-id"},
            )
        self._hang_up(victim, now)
        return []

    def _validate(
        self, session: Session, asked: etree._Element, now: float
    ) -> list[etree._Element]:
        if not self.validates:
            raise RpcError("operation-not-supported", "no operation validate", kind="protocol")
        source = asked.find(f"{{{NETCONF}}}source")
        config = None if source is None else source.find(f"{{{NETCONF}}}config")
        if config is None:
            self._running(asked, "source")
        else:
            edited([], config, "merge", self.schemas)
        return []

    # ---- inside

    def _greeted(self, session: Session, peer: Peer, message: bytes) -> None:
        """RFC 6241 8.1: a hello with a session-id, or without a common base, ends the session."""
        hello = read(message)
        offered = {text(e) for e in hello.iter(f"{{{NETCONF}}}capability")}
        supported = {BASE_1_0} | ({BASE_1_1} if self.base_1_1 else set())
        if (
            hello.tag != f"{{{NETCONF}}}hello"
            or hello.find(f"{{{NETCONF}}}session-id") is not None
            or not offered & supported
        ):
            raise Malformed("no hello that can be accepted")
        peer.greeted = True
        peer.chunked = peer.decoder.chunked = BASE_1_1 in offered & supported

    def dress(self, reply: etree._Element) -> None:
        """Give a reply the prefixes that the device prints; families that print any override it."""

    def _reply(self, session: Session, command: str, now: float, *, refused: bool) -> bytes:
        peer = self._peers.get(session)
        if not command or peer is None:
            return b""
        self._chunked = peer.chunked
        reply = element(f"{{{NETCONF}}}rpc-reply", _BASE)
        try:
            asked = read(command.encode("utf-8", "surrogateescape"))
        except Malformed as problem:
            # appendix A: this error must not be sent to a client of base:1.0; then the session ends
            # (3)
            if not peer.chunked:
                self._hang_up(session, now)
                return b""
            reply.append(RpcError("malformed-message", str(problem)[:200], kind="rpc").element())
            return encode(_bytes(reply), peer.chunked)
        spaces = {**_BASE} | {
            prefix: space for prefix, space in asked.nsmap.items() if prefix and space != NETCONF
        }
        reply = element(f"{{{NETCONF}}}rpc-reply", spaces, asked.attrib)
        try:
            answer = self._done(session, asked, now, refused)
            reply.extend(answer or [etree.Element(f"{{{NETCONF}}}ok")])
            self.dress(reply)
        except RpcError as error:
            reply.append(error.element())
        return encode(_bytes(reply), peer.chunked)

    def _done(
        self, session: Session, asked: etree._Element, now: float, refused: bool
    ) -> list[etree._Element]:
        if asked.tag != f"{{{NETCONF}}}rpc":
            name = local(str(asked.tag))
            raise RpcError(
                "unknown-element", f"{name} is no rpc", kind="rpc", info={"bad-element": name}
            )
        if asked.get("message-id") is None:
            info = {"bad-attribute": "message-id", "bad-element": "rpc"}
            raise RpcError("missing-attribute", "an rpc has a message-id", kind="rpc", info=info)
        if len(asked) != 1:
            raise RpcError(
                "missing-element",
                "an rpc has one operation",
                kind="rpc",
                info={"bad-element": "rpc"},
            )
        if refused:
            raise RpcError("operation-failed", "the device refuses")
        return self._do(session, asked[0], now)

    def _data(self, nodes: list[etree._Element], asked: etree._Element) -> etree._Element:
        data = etree.Element(f"{{{NETCONF}}}data")
        wanted = asked.find(f"{{{NETCONF}}}filter")
        if wanted is not None:
            kind = wanted.get("type") or wanted.get(f"{{{NETCONF}}}type") or "subtree"
            if kind != "subtree":
                raise RpcError("operation-not-supported", f"filter of type {kind}", kind="protocol")
            if sum(1 for _ in wanted.iter()) > MAX_FILTER:
                raise RpcError("too-big", "the filter", kind="protocol")
            nodes = selected(nodes, wanted)
        data.extend(nodes)
        return data

    def _look(self, asked: etree._Element) -> None:
        wanted = asked.find(f"{{{NETCONF}}}filter")
        self.tops = None if wanted is None else frozenset(local(str(node.tag)) for node in wanted)
        self.keys = None

    def _running(self, asked: etree._Element, which: str) -> None:
        place = asked.find(f"{{{NETCONF}}}{which}")
        if place is None or not len(place):
            raise RpcError(
                "missing-element",
                f"{which} is missing",
                kind="protocol",
                info={"bad-element": which},
            )
        name = local(str(place[0].tag))
        if name in ("candidate", "startup", "url", "config"):
            raise RpcError("operation-not-supported", f"no datastore {name}", kind="protocol")
        if name != "running":
            raise RpcError(
                "unknown-element",
                f"no datastore {name}",
                kind="protocol",
                info={"bad-element": name},
            )

    def _choice(self, asked: etree._Element, name: str, choices: Sequence[str]) -> str:
        given = asked.find(f"{{{NETCONF}}}{name}")
        if given is None:
            return ""
        if text(given) not in choices:
            raise RpcError(
                "bad-element",
                f"{name} {text(given)[:40]}",
                kind="protocol",
                info={"bad-element": name},
            )
        return text(given)

    def _free(self, session: Session) -> None:
        if self.lock is not None and self.lock is not session:
            raise RpcError("in-use", f"locked by session {self.lock.number}", kind="protocol")


def text_of(parent: etree._Element, name: str) -> str:
    child = parent.find(f"{{{NETCONF}}}{name}")
    return "" if child is None else text(child)


def _bytes(root: etree._Element) -> bytes:
    made: bytes = etree.tostring(root, xml_declaration=True, encoding="UTF-8")
    return made


_OPERATIONS = {
    "get": NetconfDialect._get,
    "get-config": NetconfDialect._get_config,
    "edit-config": NetconfDialect._edit_config,
    "lock": NetconfDialect._lock,
    "unlock": NetconfDialect._unlock,
    "close-session": NetconfDialect._close_session,
    "kill-session": NetconfDialect._kill_session,
    "validate": NetconfDialect._validate,
}
