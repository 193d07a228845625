"""Calient switches: one `apply` for TL1 and REST, whose tables mean the same. A driver defines how
they are read and written.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from drivers.rounds import Marks
from drivers.session.crossconnects import CrossConnects, believed
from drivers.watch import PATIENCE_S, patience_s, soon_s, watch
from drivers.wire import unknown
from drivers.wire.calient_rows import Connection, Pair, Work, blocking, holders, is_aid, work
from drivers.wire.unknown import Unknown
from optics import Change, Dbm, DeviceConfig, Outcome, Port, Setting, Traits

Rows = tuple[Connection, ...]
LOSS_OF_SIGNAL_DBM = -30.0  # usual threshold of the family's monitors; no source gives one
FLOOR_DBM = -60.0
"""Levels below this are not readings; no source gives this family's own floor, so the one of
Polatis meters is taken.
"""


class CalientSwitch(CrossConnects[tuple[str, str]]):
    """A Calient switch. Its ports are duplex: one AID (`1.2.5`) has a side where light enters and
    one where it leaves.

    A circuit is a setting when its row has AS=IS and OS=IS. A row that does not also come to OC=OK
    is deleted again and reported in `Outcome.failed`, as the Phosphorus plugin does, unless the
    switch's own meter reports that no light enters: then the circuit is as good as the switch can
    make it (light and link are judged elsewhere) and stays.

    A row that cannot be read does not hide the others: its ports are reported as unknown by
    `holders`, are used for no new circuit, and a circuit that may be behind it is not called
    removed. It counts once the switch has said it twice in the same words.
    """

    def __init__(self, config: DeviceConfig, traits: Traits, group: str) -> None:
        super().__init__(config, traits)
        self._group = config.options.get("group", group)
        if not re.fullmatch(r"[A-Za-z0-9_]{1,20}", self._group):
            raise ValueError(f"group {self._group!r}: letters, digits and _ only, at most 20")
        self._timeout_s = config.timeout_s
        self._patience_s = patience_s(
            traits, config.options.get("patience_s"), PATIENCE_S / config.time_scale
        )
        self._last: Rows = ()
        # rows of the last table that cannot be read
        self._strange: frozenset[Unknown] = frozenset()
        # Of one change, over all its rounds:
        # remaining halves of two-way connections: known only to the round that broke them
        self._halves: set[Pair] = set()
        self._entered: set[Pair] = set()

    @abstractmethod
    async def _table_now(self) -> tuple[Rows, frozenset[Unknown]]:
        """The whole connection table, and those of its rows that cannot be read."""

    async def _rows(self) -> Rows:
        """The whole connection table, kept in `_last`. Raises: Garbled - an unreadable row that is
        not there when asked again.
        """
        self._last, self._strange = await believed(
            f"{self.name}: connection table", self._table_now, self._strange
        )
        return self._last

    @abstractmethod
    async def _take_down(self, todo: Work, marks: Marks[Pair]) -> Iterable[Connection]:
        """Remove what `todo` lists; return what could not be removed, with the device's reasons in
        `marks.message`.
        """

    @abstractmethod
    async def _put_up(
        self, enter: Sequence[Connection], activate: Sequence[Connection], marks: Marks[Pair]
    ) -> None:
        """Reserve `enter`, activate `activate`; put the device's reason for each failure into
        `marks.message`.
        """

    @abstractmethod
    async def _roll_back(self, stale: Sequence[Connection], marks: Marks[Pair]) -> None:
        """Delete connections that did not come up as wanted."""

    @abstractmethod
    def _stale(self, rows: Rows, failed: set[Pair]) -> list[Connection]:
        """Which of `rows` were made here and carry a circuit of `failed`."""

    @abstractmethod
    async def _power(self, ports: Iterable[Port]) -> dict[Port, Dbm]:
        """The meters' readings, the floor included; a port without a meter is absent."""

    @property
    def _owner(self) -> str:
        """The group whose reserved connections are this program's own, empty if they cannot be
        identified.
        """
        return self._group

    async def read(self) -> frozenset[Setting]:
        async with self._lock:
            return self._active(await self._rows())

    def holders(self) -> Mapping[Setting | Port, str]:
        """Connections that are reserved or not yet, or no longer, in service; ports of rows that
        cannot be read.
        """
        return holders(self.name, self._last) | unknown.holders(self.name, self._strange)

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        """As the protocol says; a duplex AID alone means the side where light leaves, `1.2.5:in`
        the side where it enters.
        """
        async with self._lock:
            levels = await self._power(ports)
        return {port: level for port, level in levels.items() if level > FLOOR_DBM}

    async def _round(self, change: Change, marks: Marks[Pair]) -> Outcome:
        if not marks.writes:
            self._halves, self._entered = set(), set()
        remove, add, failed = self._sides(change)

        async def missing() -> Work:
            rows = await self._rows()
            return work(
                rows,
                frozenset(remove),
                frozenset(add),
                self._owner,
                frozenset(self._halves),
                self._strange,
            )

        todo = await missing()
        if todo and await marks.begin():
            todo = await missing()
        wanted = todo.wanted
        self._halves |= wanted - add.keys()
        marks.reasons.update(todo.refused)
        marks.trying(pair for row in (*todo.delete, *todo.activate) for pair in row.pairs)
        await self._carry_out(todo, marks)
        excused: set[Pair] = set()  # made, but dark because no light enters

        def wrong(rows: Rows) -> set[Pair]:
            held = {pair for row in rows for pair in row.pairs}
            good = {
                pair
                for row in rows
                if row.healthy or (row.active and row.pairs <= excused)
                for pair in row.pairs
            }
            return (held & remove.keys()) | (wanted - good)

        def done(rows: Rows) -> bool:
            # in progress, whatever was refused
            coming = {pair for row in rows if row.engaged for pair in row.pairs & wanted}
            return all(marks.final(pair) and pair not in coming for pair in wrong(rows))

        # a last read: what is made by now must stay
        for wait_s in (soon_s(self.traits, self._patience_s), self._patience_s, 0.0):
            last = await watch(self._rows, done, expected_s=self.traits.settle_s, patience_s=wait_s)
            if last.done:
                break
            excused |= await self._without_light(
                row for row in last.report if row.active and not row.healthy and row.pairs & wanted
            )
        rows = last.report
        state = {pair: row for row in rows for pair in row.pairs}
        for pair in wrong(rows):
            setting = remove.get(pair) or add.get(pair) or self._setting(pair)
            failed[setting] = marks.reasons.get(pair) or _silence(
                pair, state.get(pair), last.watched_s
            )
        for pair, setting in remove.items():
            if (
                pair not in marks.tried
                and setting not in failed
                and (text := unknown.at(pair, self._strange))
            ):
                failed[setting] = f"not known whether it is there: {text}"
        if stale := self._stale(rows, wrong(rows) & wanted):
            first = dict(marks.reasons)  # the operator needs the first failure
            await self._roll_back(stale, marks)
            marks.reasons.update(first)
            rows = await self._rows()
        return marks.outcome(self.name, self._active(rows), last.at_ns, failed)

    async def _carry_out(self, todo: Work, marks: Marks[Pair]) -> None:
        """Remove, then add, each in one batch: dark circuits do not wait for answers in between."""
        still = await self._take_down(todo, marks)
        if todo.delete:
            marks.broke()
        blocked = blocking(todo.activate, still)
        for connection, text in blocked.items():
            marks.reasons.update(
                {pair: text for pair in connection.pairs if pair not in marks.reasons}
            )
        enter, activate = (
            [c for c in part if c not in blocked] for part in (todo.enter, todo.activate)
        )
        await self._put_up(enter, activate, marks)
        marks.acknowledged()

    async def _without_light(self, rows: Iterable[Connection]) -> set[Pair]:
        """Circuits whose OC=FAIL is explained by a dark input: the switch can do no better."""
        suspects = list(rows)
        inputs = {Port(self.name, f"{a}:in") for row in suspects for a, _ in row.pairs}
        read = await self._power(inputs) if inputs else {}
        dark = {
            port.label.removesuffix(":in")
            for port, level in read.items()
            if level <= LOSS_OF_SIGNAL_DBM
        }
        return {
            pair for row in suspects if any(a in dark for a, _ in row.pairs) for pair in row.pairs
        }

    def _active(self, rows: Iterable[Connection]) -> frozenset[Setting]:
        return self._settings(pair for row in rows if row.active for pair in row.pairs)

    def _ends(self, ingress: str, egress: str) -> Pair | None:
        return (ingress, egress) if is_aid(ingress) and is_aid(egress) else None


def _silence(pair: Pair, row: Connection | None, watched_s: float) -> str:
    """The reason for a change that the device neither made nor refused."""
    reports = f"connection {row.name!r} {row.state}" if row else "no connection"
    return f"wanted {pair[0]}->{pair[1]}, reports {reports} after {watched_s:.1f} s"
