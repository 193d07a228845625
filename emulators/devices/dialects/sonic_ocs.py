"""Optical circuit switches under SONiC: its command line over SSH, typed or one command per call.

Grades: DOC is the SONiC OCS and SAI OCS design text, CODE a literal of sonic-mgmt (its OCS tests
and ocs_cross_connect.py), U unconfirmed. The configuration takes what is well formed at once; the
hardware follows later and may fail (DOC).

A cross-connect 1A-2B is directed: light enters 1A and leaves 2B. A duplex link of a and b is two of
them.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterable
from typing import Literal

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.cli import CliDialect
from emulators.devices.dialects.sonic_db import Databases, Row, database_command, json_patch, table
from emulators.devices.family import Family
from emulators.optics.plant import Pair, Plant, Side

# from the configuration's change to the mirrors' (U); clients check 12 times, every 5 s (CODE)
APPLY_S = 1.0
SETTLE_S = 0.05  # 3D mirrors (U, as other OCS)
STATES = ("normal", "force-blocked")  # DOC; the developer guide adds one
POWERED_OFF = "powered-off"
_ID = re.compile(r"(\d+)A-(\d+)B", re.IGNORECASE)
_RANGE = re.compile(r"(\d+)A\.\.(\d+)A-(\d+)B\.\.(\d+)B", re.IGNORECASE)


class Bad(Exception):
    """What is printed instead of doing a command; the exit status is 2."""


class SonicOcs(CliDialect[tuple[tuple[str, str, str], ...]]):
    """One switch. `config` is what is wanted, `rows` what the hardware has or is at: id -> the
    state of each side.

    apply_s: from the configuration to the hardware (s), divided by time_scale. stale: ids that the
    hardware has and the configuration does not; they cannot be deleted, only added and then deleted
    (CODE). hostname: in the prompt. verbs: `ocs` or, generated from the YANG modules, `generated`
    (DOC: the developer guide; what they print is U, as the others).
    """

    writes = re.compile(
        r"\bconfig\s+(ocs|apply-patch)|sonic-db-cli\s+CONFIG_DB\s+(hset|hmset|hdel|del)\b",
        re.IGNORECASE,
    )
    user_prompt, password_prompt = b"login: ", b"Password: "

    def __init__(
        self,
        plant: Plant,
        *,
        apply_s: float = APPLY_S,
        stale: Iterable[str] = (),
        hostname: str = "sonic",
        verbs: Literal["ocs", "generated"] = "ocs",
        model: str = "OCS-V",
        serial: str = "OCS000001",
        firmware: str = "ocs-kvm-v1.0",
        username: str | None = None,
        password: str | None = None,
        time_scale: float = 1.0,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(
            plant, username=username, password=password, seed=seed, idle_s=idle_s, boot_s=boot_s
        )
        if verbs not in ("ocs", "generated"):
            raise ValueError(f"{plant.name}: verbs {verbs!r} is none of ocs, generated")
        self.apply_s, self.verbs = apply_s / time_scale, verbs
        self.hostname, self.model, self.serial, self.firmware = hostname, model, serial, firmware
        self.config: dict[str, Pair] = {}
        self.port_config: dict[str, Row] = {
            port: {"config_status": STATES[0], "label": ""}
            for port in [*plant.ingress, *plant.egress]
        }
        self.rows: dict[str, str] = {}  # id -> "", "waits" or "failed"; "" follows the light path
        self.files: dict[str, str] = {}
        # when, "make"/"break"/"port", what, silent
        self._due: deque[tuple[float, str, str, bool]] = deque()
        for row in stale:
            (name,) = self._ids(str(row))
            self.plant.preset([self._pair(name)])
            self.rows[name] = ""

    def preset(self, ingress: str, egress: str) -> None:
        """Configure a cross-connect that has been there for ever. Raises ValueError."""
        self.plant.preset([(ingress, egress)])
        self.config[f"{ingress}-{egress}"] = (ingress, egress)
        self.rows[f"{ingress}-{egress}"] = ""

    # ---- the manner

    def prompt(self, session: Session) -> str:
        return f"{session.user or 'admin'}@{self.hostname}:~$ "

    def answer(self, session: Session, command: str, now: float) -> str:
        session.exit_status = 0
        try:
            tokens = shlex.split(command)
        except ValueError as error:
            session.exit_status = 2
            return f"-bash: {error}\n"
        while tokens and tokens[0] == "sudo":
            tokens = tokens[1:]
        try:
            return self._do(tokens, now)
        except Bad as bad:
            session.exit_status = 2
            return f"{bad}\n"

    def refuse(self, session: Session, command: str, now: float) -> bytes:
        session.exit_status = 1
        # U
        return self._printed(
            session, "Error: Failed to acquire lock on the configuration database\n", now
        )

    def unsolicited(self, now: float) -> bytes:
        # wall(1) on any Linux shell
        return b"\r\nBroadcast message from root@sonic: system maintenance\r\n"

    def snapshot(self, now: float) -> tuple[tuple[str, str, str], ...]:
        """Return (id, state of its A side, state of its B side), by id."""
        return tuple((name, *self._status(name, now)) for name in sorted(self.rows, key=_order))

    def tick(self, now: float) -> None:
        self._work(now)
        super().tick(now)

    def receive(self, session: Session, data: bytes, now: float) -> None:
        self._work(now)
        super().receive(session, data, now)
        self._work(now)

    def next_event(self, now: float) -> float | None:
        times = [super().next_event(now), self._due[0][0] if self._due else None]
        return min((t for t in times if t is not None), default=None)

    def rebooted(self, keep: bool, now: float) -> None:
        """The saved configuration is applied again at boot, in its order; stale rows are gone with
        the power (U).
        """
        self._due.clear()
        self.rows = {}
        if not keep:
            self.config = {}
            return
        for name in self.config:
            self.rows[name] = "waits"
            self._due.append((now + self.boot_s + self.apply_s, "make", name, False))

    # ---- the words

    def _do(self, tokens: list[str], now: float) -> str:
        match tokens:
            case []:
                return ""
            case ["show", "version"]:
                return self._version(now)
            case ["show", "platform", "summary"]:
                return self._summary()
            case ["show", "platform", "firmware", "status"]:
                return table(
                    ("Chassis", "Module", "Component", "Version", "Description"), self._components()
                )
            case ["config", "apply-patch", file]:
                return self._patch(file, now)
            case ["sonic-db-cli", *rest]:
                return database_command(
                    self._databases(now), rest, lambda name, row: self._set(name, row, now)
                )
            case ["echo" | "printf", text, ">", file]:
                self.files[file] = text
                return ""
            case ["cat", file] if file in self.files:
                return self.files[file] + "\n"
            case ["rm", file] if file in self.files:
                del self.files[file]
                return ""
            case [("show" | "config"), *_]:
                return self._switching(tokens, now)
        raise Bad(f"-bash: {tokens[0][:60]}: command not found")

    def _switching(self, tokens: list[str], now: float) -> str:
        """The words about ports and cross-connects, of either family; a version knows one."""
        match tokens if self.verbs == "ocs" else _known(tokens):
            case ["show", "ocs", "cross-connect", "config"]:
                return table(
                    ("id", "a_side", "b_side"),
                    [(name, *self.config[name]) for name in sorted(self.config, key=_order)],
                )
            case ["show", "ocs", "cross-connect", "status"]:
                rows = [(name, *self._pair(name), a, b) for name, a, b in self.view(now)]
                return table(("id", "a_side", "b_side", "a_side_status", "b_side_status"), rows)
            case ["show", "ocs", "port", "config"]:
                wanted = [(p, c["label"], c["config_status"]) for p, c in self.port_config.items()]
                return table(("id", "label", "config_status"), wanted)
            case ["show", "ocs", "port", "status"]:
                ports = [(p, *self._port_state(p, now).values()) for p in self.port_config]
                return table(
                    (
                        "id",
                        "connector_type",
                        "connector_pin",
                        "target_simplex_port_id",
                        "oper_status",
                    ),
                    ports,
                )
            case ["config", "ocs", "cross-connect", "add", ids, *mode] if mode in (
                [],
                ["update"],
                ["safe"],
            ):
                return self._add(self._ids(ids), "safe" in mode, now)
            case ["config", "ocs", "cross-connect", "delete", ids]:
                return self._delete(self._ids(ids), now)
            case ["config", "ocs-port", port, "--config-status", state]:  # DOC, in both
                self._set_port(port.upper(), {"config_status": state}, now)
                return ""
        raise Bad(
            f"Usage: {tokens[0]} [OPTIONS] COMMAND [ARGS]...\n\n"
            f'Error: No such command "{" ".join(tokens[1:])[:60]}".'
        )

    def _add(self, names: list[str], safe: bool, now: float) -> str:
        if safe:
            for name in names:
                pair = self._pair(name)
                for other, existing in self.config.items():
                    if other != name and (pair[0] == existing[0] or pair[1] == existing[1]):
                        # CODE: its last three words
                        raise Bad(f"Error: {name} conflicts with existing cross-connect {other}")
        self.wrote(now)
        for name in self.some(names):
            self._follow("make", name, now)
        # CODE: clients search for "cross-connect succeeded"
        return f"Add ocs cross-connect succeeded: {','.join(names)}\n"

    def _delete(self, names: list[str], now: float) -> str:
        for name in names:
            if name not in self.config:
                # CODE: a stale row is not deleted
                raise Bad(f"Error: cross-connect {name} does not exist in the configuration")
        self.wrote(now)
        for name in self.some(names):
            self._follow("break", name, now)
        return f"Delete ocs cross-connect succeeded: {','.join(names)}\n"

    def _set_port(self, port: str, row: Row, now: float) -> None:
        if port not in self.port_config:
            raise Bad(f"Error: Invalid port {port[:20]}")
        state = row.get("config_status", self.port_config[port]["config_status"])
        if state not in (*STATES, *([POWERED_OFF] if self.verbs == "generated" else [])):
            raise Bad(f"Error: Invalid value for config_status: {state[:20]}")
        self.wrote(now)
        self.port_config[port] |= {k: v for k, v in row.items() if k in ("label", "config_status")}
        self._due.append((now + self.apply_s, "port", port, self.silent))

    def _set(self, key: str, row: Row | None, now: float) -> bool:
        """Write a key of CONFIG_DB, None deletes it; return whether there is such a table. Nothing
        is checked, as in Redis (U).
        """
        name, _, what = key.partition("|")
        if name == "OCS_PORT" and row is not None and what in self.port_config:
            self._set_port(what, row, now)
        elif name == "OCS_CROSS_CONNECT" and _ID.fullmatch(what):
            (found,) = self._ids(what)
            if row is not None:
                self._add([found], False, now)
            elif found in self.config:
                self._delete([found], now)
        else:
            return False
        return True

    def _patch(self, file: str, now: float) -> str:
        """RFC 6902 on the cross-connects: add and remove, whole rows or (DOC) field by field; all
        of it or nothing.
        """
        if file not in self.files:
            raise Bad(f"Error: Could not open file '{file[:60]}': No such file or directory")
        try:
            add, remove = json_patch(self.files[file])
            made, ended = ([self._ids(name)[0] for name in names] for names in (add, remove))
        except (ValueError, Bad) as error:
            raise Bad(f"Failed to apply patch due to: {error}") from None
        for name in ended:
            if name not in self.config:
                raise Bad(f"Failed to apply patch due to: /OCS_CROSS_CONNECT/{name}: no such key")
        self.wrote(now)
        for name in ended:
            self._follow("break", name, now)
        for name in made:
            self._follow("make", name, now)
        return "Patch applied successfully.\n"

    def _version(self, now: float) -> str:
        """REAL (the README of the KVM image): lines and their order; build, distribution and load
        are made up.
        """
        up = int(max(0.0, now - self._down_until_s))
        return (
            f"\nSONiC Software Version: SONiC.{self.firmware}\nSONiC OS Version: 13\nDistribution: Debian 13.6\n"
            "Kernel: 6.12.41+deb13-sonic-amd64\nBuild commit: 4e2af959f\nBuild date: Mon Jul 20 23:16:58 UTC 2026\n"
            f"Built by: emulator@lab\n\n{self._summary()}"
            f"Uptime: {up // 3600 % 24:02d}:{up // 60 % 60:02d}:{up % 60:02d} up {up // 60} min,  1 user,"
            "  load average: 0.31, 0.28, 0.20\n"
        )

    def _summary(self) -> str:
        return (
            f"Platform: x86_64-ocs-kvm_x86_64-r0\nHwSKU: {self.model}\nASIC: ocs-kvm\nASIC Count: 1\n"
            f"Serial Number: {self.serial}\nModel Number: OCS-KVM\nHardware Revision: 1.0\n"
        )

    def _components(self) -> list[tuple[str, ...]]:
        size = f"{len(self.plant.ingress)}x{len(self.plant.egress)}"
        return [
            ("OCS", "LINE-CARD0", "OCS0-0", "1", f"Optical Circuit Switch of {size}"),
            (
                "",
                "SUPERVISOR0",
                "BIOS",
                "1",
                "Performs initialization of hardware components during booting",
            ),
            ("", "", "FPGA", "1", "Platform managment controller for on-board components"),
            ("", "", "CPLD", "1", "Used for managing IO modules"),
            ("", "", "ONIE", "1", "Open network install environment"),
        ]  # REAL, its spelling too

    # ---- the hardware

    def _follow(self, what: str, name: str, now: float) -> None:
        """Configure a cross-connect, or its end, now; the hardware does it later."""
        if what == "break":
            del self.config[name]
        else:
            self.config[name] = self._pair(name)
            if self.rows.get(name) != "":
                self.rows[name] = "waits"
        self._due.append((now + self.apply_s, what, name, self.silent))

    def _work(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            at, what, name, silent = self._due.popleft()
            if silent:
                if what == "make" and self.rows.get(name) == "waits":
                    self.rows[name] = "failed"
                continue
            if what == "port":
                side: Side = ("in" if name.endswith("A") else "out", name)
                self.plant.set_disabled(
                    [side], self.port_config[name]["config_status"] != STATES[0], at
                )
                continue
            pair = self._pair(name)
            if what == "make":
                self.rows[name] = "failed" if self.plant.connect([pair], at) else ""
            elif not self.plant.disconnect([pair], at):
                self.rows.pop(name, None)

    def _status(self, name: str, now: float) -> tuple[str, str]:
        """DOC: blocked, tuning, tuned, failed. What the mirrors have not reached is not tuned."""
        if self.rows[name] == "waits":
            return "blocked", "blocked"
        pair = self._pair(name)
        circuit = self.plant.circuit(("in", pair[0]))
        if self.rows[name] == "failed" or circuit is None or circuit.egress != pair[1]:
            return "failed", "failed"
        moving = "tuned" if circuit.settled(now) else "tuning"
        sides = zip(("in", "out"), pair, strict=True)
        a, b = (
            "blocked"
            if self.plant.disabled(s)
            else "failed"
            if s in self.plant.wrong.failed
            else moving
            for s in sides
        )
        return a, b

    def _port_state(self, port: str, now: float) -> Row:
        side: Side = ("in" if port.endswith("A") else "out", port)
        circuit = self.plant.circuit(side)
        target = "" if circuit is None else circuit.egress if side[0] == "in" else circuit.ingress
        # U, as in the status of its cross-connect
        state = "failed" if side in self.plant.wrong.failed else "blocked"
        for name, a, b in self.view(now) if target else ():
            if port in self._pair(name):
                state = a if side[0] == "in" else b
        return {
            "connector_type": "LC UPC",
            "connector_pin": "1",
            "target_simplex_port_id": target,
            "oper_status": state,
        }

    def _databases(self, now: float) -> Databases:
        config = {f"OCS_PORT|{p}": row for p, row in self.port_config.items()}
        config |= {
            f"OCS_CROSS_CONNECT|{name}": {"a_side": a, "b_side": b}
            for name, (a, b) in self.config.items()
        }
        state = {f"OCS_PORT_TABLE|{p}": self._port_state(p, now) for p in self.port_config}
        for name, a, b in self.view(now):
            one, two = self._pair(name)
            both = a if a == b else "blocked"
            state[f"OCS_CROSS_CONNECT_TABLE|{name}"] = {
                "a_side": one, "b_side": two, "a_side_status": a, "b_side_status": b, "status": both,
            }  # fmt: skip
        return Databases(config, state, self.plant)

    # ---- names

    def _ids(self, text: str) -> list[str]:
        """Return the ids of "1A-2B", "1A-2B,3A-4B" or "7A..9A-7B..9B" (CODE)."""
        names: list[str] = []
        for part in text.split(","):
            if span := _RANGE.fullmatch(part):
                a, a_end, b, b_end = (int(n) for n in span.groups())
                if not 0 <= a_end - a == b_end - b < 4096:
                    raise Bad(f"Error: Invalid cross-connect range {part[:40]}")
                pairs = [(a + step, b + step) for step in range(a_end - a + 1)]
            elif one := _ID.fullmatch(part):
                pairs = [(int(one[1]), int(one[2]))]
            else:
                raise Bad(f"Error: Invalid cross-connect id {part[:40]}")  # CODE: the word Invalid
            names += [f"{a}A-{b}B" for a, b in pairs]
        for name in names:
            for port in self._pair(name):
                if port not in self.port_config:
                    raise Bad(f"Error: Invalid port {port} in {name}")  # CODE: the word Error
        if len({end for name in names for end in self._pair(name)}) < 2 * len(names):
            raise Bad("Error: Invalid: a port stands in two cross-connects")
        return names

    def _pair(self, name: str) -> Pair:
        a, _, b = name.partition("-")
        return a, b


def _known(tokens: list[str]) -> list[str]:
    """Return what words of the generated family mean in the other, nothing if they are none (DOC:
    the six forms).
    """
    match tokens:
        case ["show", ("ocs-port" | "ocs-cross-connect") as what]:
            return ["show", "ocs", what[4:], "config"]
        case ["show", ("ocs-port-table" | "ocs-cross-connect-table") as what]:
            return ["show", "ocs", what[4:-6], "status"]
        case ["config", "ocs-port", *_]:
            return tokens
        case ["config", "ocs-cross-connect", ("add" | "update"), name, a, b] if (
            name.upper() == f"{a}-{b}".upper()
        ):
            return ["config", "ocs", "cross-connect", "add", name]
        case ["config", "ocs-cross-connect", "delete", name]:
            return ["config", "ocs", "cross-connect", "delete", name]
    return []


def _order(name: str) -> tuple[int, int]:
    found = _ID.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def faceplate(ingress: int, egress: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return 1A..NA in, 1B..MB out (DOC)."""
    return tuple(f"{n}A" for n in range(1, ingress + 1)), tuple(
        f"{n}B" for n in range(1, egress + 1)
    )


FAMILY = Family(
    "sonic-ocs", ("ssh",), SonicOcs, faceplate, settle_s=SETTLE_S, login=("admin", "admin")
)
