"""The hand-off socket: how the ranks of a running job learn that they are to use other connections,
or to pause.

Each running job has a Unix socket on its host. Ranks that connect take part; the agent passes on
what the operator asks for, and sends `go` or `drop` by itself when the route generation that a move
belongs to becomes active or is given up. The ranks decide among themselves: nothing sent here is
more than a request, and everything received here is untrusted.
"""

from __future__ import annotations

import json
import socket
import time

from agent.basics import RUN, VAR, bad, integer, number, read_json, refused, write
from agent.jobs.job_socket import GuardedSocket, clean, job_socket, socket_name
from agent.jobs.processes import job_name, start_time
from agent.jobs.rank import Rank
from agent.lines import LINE_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agent.shapes import Answer, Daemon, Json, Move

FOLDER = VAR + "/ring_changes"
STATE = RUN + "/ring_changes.json"
MOVES_KEPT = 8  # of one job, the latest
PREPARE_LEASE_S, HOLD_LEASE_S, PACE_LEASE_S = 86400, 3600, 3600
PERIOD_MOST_NS = 60_000_000_000  # no iteration worth shifting takes longer
# the file is written so much later: hosts that share a machine all commit first
LATER_NS = 2_000_000

REACHED = {
    "prepare": frozenset(("prepared", "held", "changed")),
    "hold": frozenset(("held", "changed")),
    "go": frozenset(("changed",)),
}
FAILED = frozenset(("cannot", "void"))
# a rank in one of these waits for go or drop
WAITING = frozenset(("preparing", "prepared", "held"))


class Wait:
    """A request that is answered when the ranks have reached one of `states`."""

    def __init__(self, move: int, states: frozenset[str], answer: Answer) -> None:
        self.move, self.states, self.answer = move, states, answer
        self.timer = 0


class JobSocket(GuardedSocket):
    """The socket of one running job, its ranks and its moves."""

    def __init__(
        self,
        server: Daemon,
        name: str,
        pid: int,
        listener: socket.socket,
        uid: int,
        moves: dict[int, Move],
    ) -> None:
        self.moves = moves
        self.waits: list[Wait] = []
        self.pace: Json | None = None  # the latest, whose word it is, and until when it counts
        self.paced_by = ""
        self.paced_until_ns = 0
        super().__init__(server, name, pid, listener, uid)

    def enter(self, fd: int) -> None:
        self.connections.add(Rank(self, self.server, fd))

    def ranks(self) -> list[Rank]:
        return [c for c in self.connections if c.number is not None]

    def joined(self, rank: Rank, message: Json) -> None:
        """A rank said who it is. It gets what it missed, and replaces an earlier connection of the
        same number.
        """
        for other in self.ranks():
            if other is not rank and other.number == rank.number:
                other.close()
        move = self.moves.get(message["move"])
        if move and move["decided"] and message["state"] in WAITING:
            rank.send(move["decided"])
        left_ns = self.paced_until_ns - time.monotonic_ns()
        if self.pace is not None and left_ns > 0:
            rank.send(dict(self.pace, lease_s=left_ns / 1e9))

    def changed(self, message: Json) -> None:
        """Tell the watching peers of a rank's new state in a move that was asked for here."""
        if message["move"] in self.moves:
            event = {"event": "ring_change", "t_ns": time.monotonic_ns(), "name": self.name}
            self.server.broadcast(dict(event, **message))

    def left(self, rank: Rank) -> None:
        self.connections.discard(rank)
        self.look()

    def move(self, number: int) -> Move:
        """The move of this number, made where there is none; only the latest are kept."""
        found = self.moves.setdefault(number, {"generation": None, "decided": None})
        for old in sorted(self.moves)[:-MOVES_KEPT]:
            del self.moves[old]
        return found

    def send(self, message: Json) -> None:
        for rank in list(self.connections):
            rank.send(message)

    def decide(self, number: int, message: Json) -> None:
        self.move(number)["decided"] = message
        self.send(message)
        self.server.timer(time.monotonic_ns() + LATER_NS, self.server.handoff.save)

    def rows(self, move: int | None = None) -> list[Json]:
        """Per rank what it said about `move`, or about the last move it mentioned where it said
        nothing about this one.
        """
        now = time.monotonic_ns()
        ranks = sorted(self.ranks(), key=lambda rank: rank.number or 0)
        last = [
            (rank, rank.reported[move if move in rank.reported else next(reversed(rank.reported))])
            for rank in ranks
        ]
        return [
            dict(message, world=rank.world, silent_s=round((now - rank.last_ns) / 1e9, 3))
            for rank, message in last
        ]

    def wait(self, wait: Wait, within_s: float) -> None:
        self.waits.append(wait)
        wait.timer = self.server.timer(
            time.monotonic_ns() + int(within_s * 1e9), lambda: self.reply(wait, late=True)
        )
        self.look()

    def look(self) -> None:
        """Answer the requests whose states are reached, or cannot be."""
        for wait in list(self.waits):
            states = [
                rank.reported[wait.move]["state"] if wait.move in rank.reported else None
                for rank in self.ranks()
            ]
            if all(s in wait.states for s in states) or any(s in FAILED for s in states):
                self.reply(wait)

    def reply(self, wait: Wait, late: bool = False) -> None:
        if wait not in self.waits:
            return
        self.waits.remove(wait)
        if not late:
            self.server.cancelled.add(wait.timer)
        wait.answer({"name": self.name, "move": wait.move, "ranks": self.rows(wait.move)})


class Handoff:
    """The hand-off sockets of this host's running jobs, and the operations `job.prepare`, `hold`,
    `go`, `drop`, `ring_changes` and `pace`.

    What was prepared is kept over a restart of the daemon: ranks connect again, and get what was
    decided meanwhile.
    """

    def __init__(self, server: Daemon) -> None:
        self.server = server
        self.jobs: dict[str, JobSocket] = {}
        self.kept: Json = read_json(STATE) or {}  # of the daemon before this one

    # -- sockets

    def path(self, name: str) -> str:
        return FOLDER + "/" + socket_name(name)

    def open(self, name: str, pid: int) -> None:
        """Listen for the ranks of a job that runs as process `pid`. Without a socket the job runs
        all the same.
        """
        if (found := job_socket(FOLDER, name, "hand-off")) is None:
            return
        kept = self.kept.pop(name, None)
        moves: dict[int, Move] = {}
        if kept and kept["pid"] == pid and kept["born"] == start_time(pid):
            moves = {int(move): value for move, value in kept["moves"].items()}
        self.jobs[name] = job = JobSocket(self.server, name, pid, *found, moves)
        # the daemon before this one died between its commit and this
        for move, value in moves.items():
            if value["decided"] is None and value["generation"] == (
                self.server.generations.active or 0
            ):
                job.decide(move, go(move))

    def clean(self) -> None:
        """Remove the sockets of jobs that ended while no daemon ran."""
        clean(FOLDER, {socket_name(name) for name in self.jobs})

    def close(self, name: str) -> None:
        """The job ended."""
        job = self.jobs.pop(name, None)
        if job is None:
            return
        job.shut()
        self.clean()
        self.save()

    def save(self) -> None:
        write(
            STATE,
            json.dumps(
                {
                    name: {"pid": j.pid, "born": j.born, "moves": j.moves}
                    for name, j in self.jobs.items()
                }
            ),
        )

    # -- route generations and the fence

    def moves(self) -> list[tuple[JobSocket, int, Move]]:
        return [(job, each, move) for job in self.jobs.values() for each, move in job.moves.items()]

    def activated(self, generation: int) -> None:
        """A generation became active: the moves that wait for it go."""
        for job, each, move in self.moves():
            if move["generation"] == generation and move["decided"] is None:
                job.decide(each, go(each))

    def abandoned(self, generation: int) -> None:
        """A generation was left, or will not become active: its moves are dropped. Ranks that
        already changed ignore that.
        """
        for job, each, move in self.moves():
            if move["generation"] == generation and move["decided"] != drop(each):
                job.decide(each, drop(each))

    def overtaken(self) -> None:
        """A newer run came: what older ones prepared is dropped."""
        for job, each, move in self.moves():
            if move["decided"] != drop(each):
                job.decide(each, drop(each))

    # -- operations

    def job(self, request: Json) -> JobSocket:
        name = job_name(request)
        if name not in self.jobs:
            raise refused(f"job {name} does not run here, or has no hand-off socket")
        return self.jobs[name]

    def prepare(self, request: Json, answer: Answer) -> None:
        job, move = self.job(request), integer(request, "move", 1)
        message: Json = {"do": "prepare", "move": move, "lease_s": lease(request, PREPARE_LEASE_S)}
        rings, traffic = request.get("rings"), request.get("traffic")
        if rings is not None and not isinstance(rings, list):
            raise bad("rings: a list is needed")
        if traffic is not None and not isinstance(traffic, dict):
            raise bad("traffic: a mapping is needed")
        message.update(
            {
                key: value
                for key, value in (("rings", rings), ("traffic", traffic))
                if value is not None
            }
        )
        if len(json.dumps(message)) >= LINE_LIMIT:
            raise bad(f"rings, traffic: more than {LINE_LIMIT} bytes")
        generation = (
            None if request.get("generation") is None else integer(request, "generation", 1)
        )
        if generation is not None and generation == self.server.generations.active:
            raise refused(
                f"generation {generation} is active already: prepare without it and use job.go"
            )
        wait, within_s = Wait(move, REACHED["prepare"], answer), number(request, "within_s", 30.0)
        job.move(move)["generation"] = generation
        self.save()
        for rank in list(job.connections):
            if move not in rank.reported:  # else this is the same request again
                rank.send(message)
        job.wait(wait, within_s)

    def hold(self, request: Json, answer: Answer) -> None:
        job, move = self.job(request), integer(request, "move", 1)
        message = {"do": "hold", "move": move, "lease_s": lease(request, HOLD_LEASE_S)}
        wait, within_s = Wait(move, REACHED["hold"], answer), number(request, "within_s", 30.0)
        job.send(message)
        job.wait(wait, within_s)

    def go(self, request: Json, answer: Answer) -> None:
        job, move = self.job(request), integer(request, "move", 1)
        decide = request.get("decide", True)
        if not isinstance(decide, bool):
            raise bad(f"decide: true or false is needed, got {decide!r}")
        wait, within_s = Wait(move, REACHED["go"], answer), number(request, "within_s", 30.0)
        job.decide(move, go(move, decide))
        job.wait(wait, within_s)

    def drop(self, request: Json) -> Json:
        job, move = self.job(request), integer(request, "move", 1)
        job.decide(move, drop(move))
        return {"name": job.name, "move": move, "ranks": job.rows(move)}

    def pace(self, request: Json) -> Json:
        """Tell the ranks when their iterations are to begin; those that connect later are notified,
        too. Without word after the lease nobody is paced, so nothing is kept over a restart, and no
        run of the store is needed that others would be older than."""
        job = self.job({"name": request.get("job")})
        period_ns, shift_ns = integer(request, "period_ns", 1), integer(request, "shift_ns", 0)
        if period_ns > PERIOD_MOST_NS:
            raise bad(f"period_ns: at most {PERIOD_MOST_NS} are allowed, got {period_ns}")
        if shift_ns >= period_ns:
            raise bad(f"shift_ns: less than the period, {period_ns}, is needed, got {shift_ns}")
        epoch_ns, lease_s = integer(request, "epoch_ns", 0), lease(request, PACE_LEASE_S)
        by = self.paces(job, request)
        job.paced_by = by
        job.pace = {
            "do": "pace",
            "epoch_ns": epoch_ns,
            "period_ns": period_ns,
            "shift_ns": shift_ns,
            "lease_s": lease_s,
        }
        job.paced_until_ns = time.monotonic_ns() + int(lease_s * 1e9)
        job.send(job.pace)
        return {"job": job.name, "ranks": len(job.ranks())}

    def paces(self, job: JobSocket, request: Json) -> str:
        """Whose word a request is. Raises: Failure - that of another still counts: two would pull
        the job to and fro.
        """
        if not isinstance(by := request.get("by", ""), str) or len(by) > 200:
            raise bad(f"by: a word of at most 200 characters is needed, got {by!r:.100}")
        left_ns = job.paced_until_ns - time.monotonic_ns()
        if job.pace is not None and left_ns > 0 and by and job.paced_by not in ("", by):
            raise refused(
                f"job {job.name} is paced by {job.paced_by}, for {left_ns / 1e9:.0f} s more"
            )
        return by

    def unpace(self, request: Json) -> Json:
        """Have the ranks begin when they like; a word that says whose it is ends only that one's
        pace.
        """
        job = self.job({"name": request.get("job")})
        self.paces(job, request)
        job.pace = None
        job.send({"do": "pace.stop"})
        return {"job": job.name, "ranks": len(job.ranks())}

    def ring_changes(self, request: Json) -> Json:
        job = self.job(request)
        move = max(job.moves, default=None)
        generation = None if move is None else job.moves[move]["generation"]
        return {
            "name": job.name,
            "move": move,
            "generation": generation,
            "ranks": job.rows(),
            "cut_off": job.cut_off,
        }


def go(move: int, decide: bool = False) -> Json:
    return {"do": "go", "move": move, "decide": decide}


def drop(move: int) -> Json:
    return {"do": "drop", "move": move}


def lease(request: Json, most: int) -> float:
    """How long the ranks may obey a request without another one, in s. Raises: Failure - more than
    `most`, or no time at all.
    """
    value = request.get("lease_s")
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= most:
        raise bad(f"lease_s: seconds above 0 and up to {most} are needed, got {value!r}")
    return value
