"""Telescent patch-panel robots over their SSH command line, as far as it is public.

Grades: CODE is a literal of ericrqs/cloudshell-L1-Telescent, U unconfirmed. That driver gives the
commands, the words it takes for a failure (`Exception`, `ERROR`) and a pattern for the rows of
`switchstate`; no output of a device is public. U are all other words of an answer, the prompt, the
colours, the status letters (but that A.. is allocated), the locking rules, the moves and their
time.

`switchstate`: one row `R<row>#<state>` per twelve egress ports, in it twelve cells, each some
letters and a number. The cell in column c (from 0) of row R stands for egress port R*12+c. An
allocated port (letters beginning with A; AL: locked) names the ingress port connected to it (CODE),
M the ingress whose fibre is being moved (U). Others repeat their own number: F free, FL free and
locked, N no such port (U): the first cell of R0 would be port 0, which these panels do not have.
"""

from __future__ import annotations

import re

from emulators.devices.dialects.base import NEVER_S, Session
from emulators.devices.dialects.cli import CliDialect
from emulators.devices.dialects.cli_robot import MOVE_S, Job, Robot, fibres
from emulators.devices.family import Family, two_sided
from emulators.optics.plant import Pair, Plant, Side

COLUMNS = 12  # CODE: modules of 8 rows by 12 columns
MODULE_ROWS = 8
_COLOURS = {"A": "32", "AL": "31", "M": "33", "F": "37", "FL": "35", "N": "90"}
State = tuple[frozenset[Pair], frozenset[Side]]


class TelescentCli(CliDialect[State]):
    """One panel: one gripper, one queue. What a connection uses is allocated and locked until it is
    unlocked and unallocated.

    waits: the prompt comes when the fibre is in its socket, not when the command is accepted.
    move_s: as Rome. A stalled one does not move until it boots: no command that homes it is public
    (U). unlock_quirk: a port unlocked on one side only cannot be unallocated (CODE: README,
    "apparent bug in switch/simulator").
    """

    robot = True
    writes = re.compile(r"^\s*(connect|unlock|unallocate)\b", re.IGNORECASE)

    def __init__(
        self,
        plant: Plant,
        *,
        waits: bool = False,
        unlock_quirk: bool = True,
        move_s: float | None = None,
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
        if move_s is not None:
            plant.settle_s = move_s / time_scale
        self.waits, self.unlock_quirk = waits, unlock_quirk
        self.locked: set[Side] = set()
        self.gripper = Robot(plant, self.faults, self._reports, lambda job: None)
        self._waiting: dict[int, Session] = {}
        self._jobs = 0

    def preset(self, ingress: str, egress: str) -> None:
        """Make a pair as if it had been there for ever, allocated and locked. Raises ValueError."""
        self.plant.preset([(ingress, egress)])
        self._lock((ingress, egress))

    # ---- the manner

    def prompt(self, session: Session) -> str:
        return "telescent> "

    def answer(self, session: Session, command: str, now: float) -> str:
        tokens = command.split()
        flags = {word.lower() for word in tokens if word.startswith("--")}
        rest = [word for word in tokens[1:] if not word.startswith("--")]
        match tokens[0].lower(), rest:
            case "switchstate", []:
                return self._switchstate(now)
            case "connect", ["-in", one, "-out", two]:
                return self._connect(session, [(one, two)], "--force" in flags, now)
            case "connect", [one, two] if not one.startswith("-"):
                return self._connect(session, [(one, two), (two, one)], "--force" in flags, now)
            case ("unlock" | "unallocate") as verb, [("-in" | "-out") as which, port]:
                return self._free(verb, [(which[1:], port)], now)
            case ("unlock" | "unallocate") as verb, [port] if not port.startswith("-"):
                return self._free(verb, [("in", port), ("out", port)], now)
        return f"Exception: CommandSyntaxException: {command[:60]}\n"

    def execute(self, session: Session, command: str, now: float) -> bytes:
        reply = super().execute(session, command, now)
        if not self.working(session):
            return reply
        session.busy_until_s = NEVER_S  # until the robot reports otherwise
        return b""

    def working(self, session: Session) -> bool:
        return session in self._waiting.values()

    def refuse(self, session: Session, command: str, now: float) -> bytes:
        return self._printed(session, "ERROR: command refused\n", now)

    def unsolicited(self, now: float) -> bytes:
        return b"NOTICE: door closed\r\n"  # whether it sends unsolicited messages is not public

    def snapshot(self, now: float) -> State:
        return self.plant.light(now), frozenset(self.locked)

    def receive(self, session: Session, data: bytes, now: float) -> None:
        super().receive(session, data, now)
        self.gripper.work(now)

    def tick(self, now: float) -> None:
        self.gripper.work(now)
        super().tick(now)

    def next_event(self, now: float) -> float | None:
        return min(
            (t for t in (super().next_event(now), self.gripper.next_event()) if t is not None),
            default=None,
        )

    def close(self, session: Session) -> None:
        super().close(session)
        self._waiting = {
            number: whose for number, whose in self._waiting.items() if whose is not session
        }

    def reboot(self, keep: bool, now: float) -> None:
        """Fibres, allocations and locks outlive a power cut (U); `keep` False takes the fibres out,
        as the fault asks.
        """
        self.gripper.cut_power(now)
        self.gripper.stalled = False  # it homes while it boots (U)
        self._waiting.clear()
        if not keep:
            self.locked.clear()
            super().reboot(False, now)
            return
        for session in tuple(self.sessions):
            self._hang_up(session, now)
        self._down_until_s = now + self.boot_s

    # ---- the words

    def _switchstate(self, now: float) -> str:
        light, locked = self.view(now)
        sources = {egress: ingress for ingress, egress in light}
        coming = {
            circuit.egress: circuit.ingress
            for p in self.plant.egress
            if (circuit := self.plant.circuit(("out", p)))
        }
        last = max(int(port) for port in self.plant.egress)
        rows = -(-(last + 1) // COLUMNS)
        lines = []
        for row in range(rows):
            cells = []
            for number in range(row * COLUMNS, (row + 1) * COLUMNS):
                port = str(number)
                lock = "L" if ("out", port) in locked else ""
                if port not in self._egress:
                    status, shown = "N", port
                elif port in sources:
                    status, shown = f"A{lock}", sources[port]
                elif port in coming:
                    status, shown = "M", coming[port]
                else:
                    status, shown = f"F{lock}", port
                cells.append(f"\x1b[{_COLOURS[status]}m{(status + shown).ljust(7)}\x1b[0m")
            lines.append(f"R{row}#O " + " ".join(cells))
            if row % MODULE_ROWS == MODULE_ROWS - 1 and row + 1 < rows:
                lines.append("")
        return "\n".join(lines) + "\n"

    def _connect(self, session: Session, pairs: list[Pair], force: bool, now: float) -> str:
        if wrong := self._unknown(pairs):
            return wrong
        if len(pairs) == 2 and pairs[0] == pairs[1]:
            return f"ERROR: port {pairs[0][0]} cannot be connected to itself\n"
        wanted = [pair for pair in pairs if self.plant.since(pair) is None]
        sides = [side for pair in wanted for side in (("in", pair[0]), ("out", pair[1]))]
        held = self.plant.wrong.locked
        for which, port in sides:
            if (which, port) in self.locked or (which, port) in held:
                return f"ERROR: port {port} ({which}) is locked\n"
            if self.plant.circuit((which, port)) and not force:
                return f"ERROR: port {port} ({which}) is allocated\n"
        if not wanted:
            return "OK: already connected\n"
        self.wrote(now)
        inside = {circuit.pair for side in sides if (circuit := self.plant.circuit(side))}
        self._jobs += 1
        # CODE: the driver never unallocates before it connects, so --force takes a fibre that
        # blocks the port
        if inside:
            self.gripper.add(Job(self._jobs, *pairs[0], False, sorted(inside)), now)
        self.gripper.add(Job(self._jobs, *pairs[0], True, wanted), now)
        for pair in wanted:
            self._lock(pair)
        if self.waits:
            self._waiting[self._jobs] = session
        return f"OK: request {self._jobs} accepted\n"

    def _free(self, verb: str, sides: list[Side], now: float) -> str:
        if wrong := self._unknown([(port, port) for _, port in sides]):
            return wrong
        port = sides[0][1]
        if verb == "unlock":
            self.wrote(now)
            self.locked.difference_update(sides)
            return f"OK: {port} unlocked\n"
        checked = [("in", port), ("out", port)] if self.unlock_quirk else sides
        if any(side in self.locked for side in checked):
            return f"ERROR: port {port} is locked\n"
        pairs = sorted({circuit.pair for side in sides if (circuit := self.plant.circuit(side))})
        if not pairs:
            return f"OK: {port} is not allocated\n"
        if any(("in", a) in self.locked or ("out", b) in self.locked for a, b in pairs):
            return f"ERROR: the other end of port {port} is locked\n"
        self.wrote(now)
        self._jobs += 1
        self.gripper.add(Job(self._jobs, port, port, False, pairs), now)
        return f"OK: request {self._jobs} accepted\n"

    # ---- inside

    @property
    def _egress(self) -> frozenset[str]:
        return frozenset(self.plant.egress)

    def _unknown(self, pairs: list[Pair]) -> str:
        for ingress, egress in pairs:
            for port, known in ((ingress, self.plant.ingress), (egress, self.plant.egress)):
                if port not in known:
                    return f"Exception: NoSuchPortException: {port[:20]}\n"
        return ""

    def _lock(self, pair: Pair) -> None:
        sides = (
            [(which, port) for port in pair for which in ("in", "out")] if self.unlock_quirk else []
        )
        self.locked.update([("in", pair[0]), ("out", pair[1]), *sides])

    def _reports(self, what: str, job: Job | None, pair: Pair | None, at: float) -> None:
        if job is None:
            return
        if what == "failed" and job.connects and pair is not None:
            self.locked -= {("in", pair[0]), ("out", pair[1])}
        if what == "end" and job.connects and (session := self._waiting.pop(job.number, None)):
            word = (
                "ERROR: move failed"
                if "failed" in job.outcome
                else f"OK: request {job.number} done"
            )
            session.busy_until_s = at
            session.exit_status = int("failed" in job.outcome)
            self.send(session, at, self._printed(session, f"{word}\n", at))
            self._end_once(session, at)


FAMILY = Family(
    "telescent-cli",
    ("ssh",),
    TelescentCli,
    two_sided,
    settle_s=MOVE_S,
    login=("admin", "admin"),
    time_scale=60.0,
    plant=fibres,
)
