"""Wave2Wave ROME and FiberZone AFM patch-panel robots: the command line they share.

Grades: REAL is device output kept in the tests of cloudshell-L1-w2w-rome, CODE a literal of public
clients (that driver, a FiberSmart telnet script), U unconfirmed: no public source says, so the
choice made here asks most of a driver.

Female ports E1..En take light in, male ports W1..Wn let it out. A logical port A<n> is E<n> and
W<n>: joining two is two moves.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.cli import CliDialect
from emulators.devices.dialects.cli_robot import MOVE_S, Job, Robot, fibres
from emulators.devices.dialects.rome_log import Log
from emulators.devices.dialects.rome_text import (
    PENDING,
    Q_PORTS,
    board,
    labels,
    pending_rows,
    port_rows,
)
from emulators.devices.family import Family
from emulators.optics.plant import Pair, Plant

HOMING_S = 120.0  # how long a homing run takes (U)
FIRST_REQUEST = 772  # the number the one kept queue row bears (REAL)
_GRAMMAR = (
    ("show", "board"),
    ("port", "show"),
    ("port", "show", "*"),
    ("connection", "create", "*", "to", "*"),
    ("connection", "disconnect", "*", "from", "*"),
    ("connection", "show", "pending"),
    ("connection", "set", "command-execution", "*"),
    ("homing", "run"),
)


class Refusal(Exception):
    """What is printed instead of doing a command."""


class RomeCli(CliDialect[frozenset[Pair]]):
    """One chassis: one gripper, one queue.

    brackets: ports whose label is wrong, and what is printed in its brackets: {E4: 1AE2} prints
    E4[1AE2]. A public fixture has that one, edited by hand: that a chassis is ever labelled so is
    U. logical: letter of the logical ports; "" names them by matrix, A1..A128, B129.. (REAL);
    `A,Q`: by matrix, Q ports are four of either side (REAL). matrix_ports: ports per matrix. bare,
    nameless: see rome_text.labels. further: blanks by which the port table's columns from the
    counter on are further to the right (REAL: one, of one matrix). move_s: one move, None: the
    plant's settling time; homing_s likewise of the real device, divided by time_scale. torn: how
    often a log line is kept for the middle of the next output (0 to 1, U); it is kept torn_hold_s
    (s) at most.
    """

    robot = True
    writes = re.compile(r"^\s*(conn\w*\s+(c|d|se)|homi)", re.IGNORECASE)
    user_prompt, password_prompt = b"Login:", b"Password:"  # REAL

    def __init__(
        self,
        plant: Plant,
        *,
        logical: str = "A",
        matrix_ports: int = 128,
        brackets: Mapping[str, str] | None = None,
        bare: bool = False,
        nameless: Collection[str] = (),
        further: int = 0,
        mode: str = "TECH",
        move_s: float | None = None,
        homing_s: float = HOMING_S,
        torn: float = 0.25,
        torn_hold_s: float = 5.0,
        operations: int = 7766,
        model: str = "ROME500",
        serial: str = "9727-4733-2222",
        firmware: str = "1.10.2.10",
        username: str | None = None,
        password: str | None = None,
        time_scale: float = 1.0,
        epoch_s: float = 0.0,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(
            plant, username=username, password=password, seed=seed, idle_s=idle_s, boot_s=boot_s
        )
        if not 0.0 <= torn <= 1.0:
            raise ValueError(f"{plant.name}: torn: wanted 0 to 1, seen {torn}")
        if matrix_ports < 1:
            raise ValueError(f"{plant.name}: matrix_ports: wanted 1 or more, seen {matrix_ports}")
        if move_s is not None:
            plant.settle_s = move_s / time_scale
        self.mode, self.model, self.serial, self.firmware = mode.upper(), model, serial, firmware
        self.epoch_s, self.homing_s = epoch_s, homing_s / time_scale
        ports = (*plant.ingress, *plant.egress)
        wrong = {str(port): str(bracket) for port, bracket in dict(brackets or {}).items()}
        if unknown := wrong.keys() - set(ports):
            raise ValueError(f"{plant.name}: brackets: no port {min(unknown)}")
        if unknown := {str(port) for port in nameless} - set(ports):
            raise ValueError(f"{plant.name}: nameless: no port {min(unknown)}")
        if not 0 <= further <= 4:
            raise ValueError(f"{plant.name}: further: wanted 0 to 4, seen {further}")
        self.further = further
        self.ports = labels(ports, logical, matrix_ports, wrong, bare, nameless)
        self.counter = dict.fromkeys(self.ports, 0)
        self.operations = operations
        self.gripper = Robot(plant, self.faults, self._reports, self._invalid)
        self.log = Log(torn, torn_hold_s / time_scale, self._random)
        self._requests = FIRST_REQUEST - 1

    def preset(self, ingress: str, egress: str) -> None:
        """Plug a fibre as if it had been there for ever. Raises ValueError."""
        self.plant.preset([(ingress, egress)])

    # ---- the manner

    def prompt(self, session: Session) -> str:
        return f"ROME[{self.mode}]# "  # REAL

    def welcome(self) -> str:
        return "\n\nWelcome to ROME CLI\n\n\n"  # REAL on an AFM, which says FiberZone AFM

    def denied(self) -> str:
        return "username or password invalid\n"  # REAL

    def polish(self, session: Session, output: bytes, now: float) -> bytes:
        return self.log.tear(session, output, len(self.prompt(session)))

    def answer(self, session: Session, command: str, now: float) -> str:
        try:
            return self._do(session, command, now)
        except Refusal as refusal:
            return f"{refusal}\n"

    def refuse(self, session: Session, command: str, now: float) -> bytes:
        # CODE: clients search for ERROR and Error; the words are U
        return self._printed(session, "ERROR - command refused\n", now)

    def unsolicited(self, now: float) -> bytes:
        one, two = self.plant.ingress[0], self.plant.egress[0]
        return f"{self._stamp(now)} CONNECTION OPERATION SUCCEEDED:{self._label(one)}<->{self._label(two)} OP:connect\r\n".encode()

    def inside(self, reply: bytes) -> int:
        return reply.find(b"\n") + 1

    def snapshot(self, now: float) -> frozenset[Pair]:
        """Fibres that rest in their sockets; one in the gripper is connected to nothing (U)."""
        return self.plant.light(now)

    def receive(self, session: Session, data: bytes, now: float) -> None:
        super().receive(session, data, now)
        self._work(now)

    def tick(self, now: float) -> None:
        super().tick(now)
        self._work(now)

    def next_event(self, now: float) -> float | None:
        times = [super().next_event(now), self.gripper.next_event(), self.log.next_event()]
        return min((t for t in times if t is not None), default=None)

    def close(self, session: Session) -> None:
        super().close(session)
        self.log.forget(session)

    def step_clock(self, seconds: float) -> None:
        self.epoch_s += seconds

    def reboot(self, keep: bool, now: float) -> None:
        """Fibres stay in their sockets without power; `keep` False takes them out all the same, as
        the fault asks.
        """
        self.gripper.cut_power(now)
        if not keep:
            super().reboot(False, now)
            return
        for session in tuple(self.sessions):
            self._hang_up(session, now)
        self._down_until_s = now + self.boot_s

    # ---- the words

    def _do(self, session: Session, command: str, now: float) -> str:
        match _parse(command):
            case ["show", "board"]:
                running = (
                    "enabled" if self.gripper.enabled and not self.gripper.stalled else "disabled"
                )
                count = self.operations + self.gripper.count
                return board(self.mode, self.model, self.serial, self.firmware, len(self.plant.egress), len(self.plant.ingress),
                             running, count, now - self._down_until_s)  # fmt: skip
            case ["port", "show"]:
                return self._rows(list(self.ports), now)
            case ["port", "show", name]:
                return self._rows(
                    [name.upper()] if name.upper() in self.ports else self._halves(name), now
                )
            case ["connection", "create", one, "to", two]:
                return self._request(session, one, two, True, now)
            case ["connection", "disconnect", one, "from", two]:
                return self._request(session, one, two, False, now)
            case ["connection", "show", "pending"]:
                return self._pending()
            case ["connection", "set", "command-execution", word] if word.upper() in (
                "ENABLE",
                "DISABLE",
            ):
                return self._execution(word.upper() == "ENABLE", now)
            case ["homing", "run"]:
                return self._homing(now)
        raise Refusal(f"ERROR - unknown command: {command[:60]}")  # U

    def _rows(self, names: list[str], now: float) -> str:
        peers = {name: other for pair in self.view(now) for name, other in (pair, pair[::-1])}
        return port_rows(names, self.ports, peers, self.counter, self._locked(), self.further)

    def _request(self, session: Session, one: str, two: str, connects: bool, now: float) -> str:
        one, two = one.upper(), two.upper()
        moves = self._moves(one, two)
        if len({self.ports[label].matrix for pair in moves for label in pair}) > 1:
            raise Refusal("Ports are not of the same matrix")  # CODE
        self._requests += 1
        job = Job(self._requests, one, two, connects, moves, session.user or "admin")
        if (
            connects
            and self.gripper.current is None
            and not self.gripper.queue
            and (why := self._invalid(job))
        ):
            # REAL
            return f"{self._stamp(now)} \nPorts details:\n{why}\n{self._validation_failed(job, now)}\n\n"
        if not connects and job.duplex:  # REAL: only the half that is there is named
            job.moves = [pair for pair in moves if self.plant.since(pair) is not None] or moves
        self.wrote(now)
        self.gripper.add(job, now)
        return f"OK - request added to pending queue ({one}-{two})\n"  # REAL

    def _moves(self, one: str, two: str) -> list[Pair]:
        """E and W of single ports in either order; two logical ports are joined in both directions,
        E to W.
        """
        if one in self.ports or two in self.ports:
            first, second = sorted((self._port(one), self._port(two)))
            if first[0] == second[0]:
                # U
                raise Refusal(
                    f"Error: {one} and {two} are both {'female' if first[0] == 'E' else 'male'}"
                )
            return [(first, second)]
        here, existing = self._halves(one), self._halves(two)
        if one == two:
            raise Refusal(f"Error: {one} cannot be connected to itself")  # U
        if len(here) != len(existing):
            raise Refusal(f"Error: {one} and {two} are not of the same size")  # U
        half = len(here) // 2
        ends = zip(here[:half], here[half:], existing[:half], existing[half:], strict=True)
        return [pair for e1, w1, e2, w2 in ends for pair in ((e1, w2), (e2, w1))]

    def _pending(self) -> str:
        """REAL: a chassis at work always says it is delayed and names the homing run, stalled or
        not.
        """
        gripper = self.gripper
        delayed = gripper.current is not None or gripper.stalled
        tokens = (
            ["delayed due to command in process", " " * 29 + 'Perform "homing run"']
            if delayed
            else ["enabled"]
        )
        if not delayed and not gripper.enabled:
            tokens = ["disabled"]  # U
        at_work = "no request in process"
        if (job := gripper.current) is not None:
            at_work = f"Command in process:\n{_verb(job)}, ports: {job.first}-{job.second}, status: in process with payload"
        queue = [
            (job.number, job.first, job.second, _verb(job), "CLI", job.user)
            for job in gripper.queue
        ]
        return f"Connection execution status: {tokens[0]}\n" + "".join(f"{w}\n" for w in tokens[1:]) + (
            f"\n{at_work}\n\n{PENDING}{pending_rows(queue)}\n"
        )  # fmt: skip

    def _execution(self, enable: bool, now: float) -> str:
        if enable and (self.gripper.stalled or self.gripper.homed_at_s is not None):
            raise Refusal('ERROR - perform "homing run" first')  # U
        self.wrote(now)
        self.gripper.enabled = enable
        return f"connection execution is {'enabled' if enable else 'disabled'}\n"  # REAL of enabled

    def _homing(self, now: float) -> str:
        if self.gripper.homed_at_s is not None:
            raise Refusal("Error: homing is running")  # U
        if self.gripper.current is not None and not self.gripper.stalled:
            raise Refusal("Error: command in process")  # U
        self.wrote(now)
        self.gripper.home(now, self.homing_s)
        return "OK - homing started\n"  # U; the word clients wait for comes as a log line

    # ---- the robot

    def _work(self, now: float) -> None:
        self.gripper.work(now)
        for session, at, data in self.log.due(now, self.screens):
            self.send(session, at, data)

    def _reports(self, what: str, job: Job | None, pair: Pair | None, at: float) -> None:
        line = ""
        if what == "homed":
            self.gripper.enabled = False  # CODE: clients enable execution afterwards
            if job is not None:
                for half in job.moves[len(job.outcome) :]:
                    # U
                    self._notify(
                        f"CONNECTION OPERATION FAILED:{self._both(half)} OP:{_verb(job)}", at
                    )
            line = "RECOVERY FINISHED SUCCESSFULLY"  # CODE
        elif what == "stalled":
            line = "Multiple Cross Connect Severe Failure"  # CODE
        elif job is None:
            return
        elif what == "start":
            line = "CONNECTING..." if job.connects else "DISCONNECTING..."
        elif what == "invalid":
            line = self._validation_failed(job, at)[len(self._stamp(at)) + 1 :]
        elif what == "end":
            if job.connects and job.duplex and "failed" not in job.outcome:
                line = f"Connection {job.first}<->{job.second} completed successfully"
        elif pair is not None:
            word = {"done": "SUCCEEDED", "failed": "FAILED", "skipped": "SKIPPED(already done)"}[
                what
            ]
            line = f"CONNECTION OPERATION {word}:{self._both(pair)} OP:{_verb(job)}"
            for label in pair if what == "done" else ():
                self.counter[label] += 1
        if line:
            self._notify(line, at)

    def _notify(self, line: str, at: float) -> None:
        self.log.add(
            f"{self._stamp(at)} {line}", at, [s for s in self.sessions if self._listens(s)]
        )

    def _listens(self, session: Session) -> bool:
        screen = self.screens.get(session)
        return screen is not None and screen.stage == "shell" and not screen.once

    def _invalid(self, job: Job) -> str | None:
        """Return the ports that prevent a connect, as the robot names them, None when it can be
        done.
        """
        if not job.connects:
            return None
        locked = self._locked()
        for pair in job.moves:
            busy = any(self.plant.circuit(side) for side in (("in", pair[0]), ("out", pair[1])))
            if (busy and self.plant.since(pair) is None) or not locked.isdisjoint(pair):
                return f"[{self._label(pair[0])}] [{self._label(pair[1])}]"
        return None

    def _validation_failed(self, job: Job, at: float) -> str:
        # REAL
        return f"{self._stamp(at)} OPERATION VALIDATION FAILED:{job.first}-{job.second} requestType={_verb(job)}"

    def _locked(self) -> set[str]:
        return {label for _, label in self.plant.wrong.locked}

    # ---- names

    def _port(self, name: str) -> str:
        if name.upper() not in self.ports:
            raise Refusal(f"ERROR - no such port: {name[:20]}")  # U
        return name.upper()

    def _halves(self, name: str) -> list[str]:
        found = [label for label, port in self.ports.items() if port.logical == name.upper()]
        if len(found) not in (2, 2 * Q_PORTS):
            raise Refusal(f"ERROR - no such port: {name[:20]}")  # U
        return found

    def _label(self, label: str) -> str:
        return self.ports[label].text

    def _both(self, pair: Pair) -> str:
        return f"{self._label(pair[0])}<->{self._label(pair[1])}"

    def _stamp(self, at: float) -> str:
        return f"{datetime.fromtimestamp(self.epoch_s + at, UTC):%m-%d-%Y %H:%M}"  # REAL


def _verb(job: Job) -> str:
    return "connect" if job.connects else "disconnect"


def _parse(command: str) -> list[str]:
    """Return the words of `command` in full; any unambiguous beginning of a word will do (CODE:
    `conn cr e21 to w23`).
    """
    typed = command.split()
    fitting = [
        form
        for form in _GRAMMAR
        if len(form) == len(typed)
        and all(
            word == "*" or word.startswith(seen.lower())
            for word, seen in zip(form, typed, strict=True)
        )
    ]
    if len(fitting) != 1:
        return typed if not fitting else []
    return [seen if word == "*" else word for word, seen in zip(fitting[0], typed, strict=True)]


def faceplate(ingress: int, egress: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return E1..En in, W1..Wm out."""
    return tuple(f"E{n}" for n in range(1, ingress + 1)), tuple(
        f"W{n}" for n in range(1, egress + 1)
    )


FAMILY = Family(
    "rome-cli",
    ("ssh", "telnet"),
    RomeCli,
    faceplate,
    settle_s=MOVE_S,
    login=("admin", "admin"),
    time_scale=60.0,
    plant=fibres,
)
