"""The telemetry journal: an append-only line-protocol file per run, written before any point is
sent to a server.

`<run_dir>/telemetry/000.lp`, then 001.lp and so on in parts of 64 MB; `anchor.json` next to them
holds the run's one wall-clock anchor. Times come in as monotonic nanoseconds of this machine and
are written as wall time through that anchor, so that a stepped clock bends neither a duration nor
an order.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

from optics.errors import StoreFailed
from orchestrator.measurement import COMMON_TAGS, Measurement
from orchestrator.processes import boot_id
from orchestrator.telemetry.lineprotocol import (
    INT_MAX,
    INT_MIN,
    FieldValue,
    integer,
    number,
    tag,
    text,
)
from orchestrator.telemetry.names import MEASUREMENTS

PART_BYTES = 64 * 1024 * 1024
_BUFFER_BYTES = 64 * 1024
_FLUSH_NS = 100_000_000
_MOST_WAITING = 64 * 1024 * 1024
_END = ord("\n")
# Out-of-order points (a host's report that arrives late) are compared with this many recent ones of
# their series.
_RECENT = 1024


class Clock(Protocol):
    """Two clocks of one machine, in nanoseconds."""

    def monotonic_ns(self) -> int: ...
    def time_ns(self) -> int: ...


class _Series:
    """One measurement with one set of tag values: the prefix of its lines and the timestamps
    already used.
    """

    __slots__ = ("last", "prefix", "recent")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.last = -1
        self.recent: deque[int] = deque(maxlen=_RECENT)

    def free(self, at: int) -> int:
        """The first nanosecond from `at` on that no recent point of the series has: equal
        timestamps overwrite each other.
        """
        if at > self.last:
            self.last = at
        else:
            while at in self.recent:
                at += 1
            self.last = max(self.last, at)
        self.recent.append(at)
        return at


class Journal:
    """Writes the points of one run. Safe to call from several threads; cheap enough to call per
    sample.

    Events reach the file at once, samples within 100 ms of the next point or at `flush()`. After a
    crash the worst is a torn last line, which the reader skips and a reopened journal cuts off.
    While the disk is full the points wait in memory (64 MB of them) and the run goes on; `trouble`
    says so (after `close`, how many were lost), and `notify` is called with a message.

    Raises: StoreFailed - it cannot be created.
    """

    def __init__(
        self,
        run_dir: Path,
        run: str,
        testbed: str,
        *,
        clock: Clock | None = None,
        part_bytes: int = PART_BYTES,
        compress: bool = True,
    ) -> None:
        self.clock: Clock = clock or time
        self.directory = run_dir / "telemetry"
        self._common = f",testbed={tag(testbed)},run={tag(run)}"
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.anchor_ns, self.start_ns = self._anchor()
            self._fd, self._size, self._part = self._open()
        except OSError as error:
            hint = "free some space, or choose another directory: TESTBED_STATE_DIR"
            raise StoreFailed(
                f"the journal cannot be created: {self.directory}: {error.strerror or error}",
                hint=hint,
            ) from error
        self._series: dict[tuple[str, ...], _Series] = {}
        self._lines: list[str] = []
        self._pending = 0
        self._waiting = bytearray()
        self._torn = False
        self._dropped = 0
        self.trouble = ""
        self.notify: Callable[[str], None] = lambda message: None
        self._flushed_ns = self.clock.monotonic_ns()
        self._lock = threading.Lock()
        self._part_bytes = part_bytes
        self._compress = compress
        self._packers: list[threading.Thread] = []
        self.points = 0

    @property
    def path(self) -> Path:
        """The part file being written."""
        return self.directory / f"{self._part:03d}.lp"

    def now_ns(self) -> int:
        """Monotonic nanoseconds, the unit of every time given to this class."""
        return self.clock.monotonic_ns()

    def point(
        self,
        measurement: str,
        tags: Mapping[str, str] | None = None,
        fields: Mapping[str, FieldValue | None] | None = None,
        mono_ns: int | None = None,
    ) -> None:
        """Write one point at `mono_ns` (default: now).

        Every declared tag but `testbed` and `run` must be given; fields are any of the declared
        ones. A field that is None, not a finite number, or an integer beyond 64 bits is omitted (a
        missing reading); a point without fields, or at a time that 64 bits do not hold, is not
        written. Raises: ValueError - a name that is not declared, a missing tag, or a value of
        another type than declared.
        """
        known = MEASUREMENTS.get(measurement)
        if known is None:
            raise ValueError(
                f"measurement {measurement!r} is not declared (orchestrator/telemetry/names.py)"
            )
        body = self._fields(known, fields or {})
        at = self.clock.monotonic_ns() if mono_ns is None else mono_ns
        # room for points of the same time
        if not body or not INT_MIN < at + self.anchor_ns < INT_MAX - _RECENT:
            return
        with self._lock:
            series = self._series_of(known, tags or {})
            line = f"{series.prefix}{body} {series.free(at + self.anchor_ns)}\n"
            self._lines.append(line)
            self._pending += len(line)
            self.points += 1
            if known.events or self._pending >= _BUFFER_BYTES or at - self._flushed_ns >= _FLUSH_NS:
                self._write()

    def samples(
        self,
        measurement: str,
        tags: Mapping[str, str],
        names: Sequence[str],
        rows: Iterable[tuple[int, ...]],
    ) -> None:
        """Write many points of one series: rows of integers in the order of `names`, then the time
        (monotonic ns), oldest first.

        Costs a tenth of as many calls of `point`. Raises: as `point`.
        """
        known = MEASUREMENTS[measurement]
        if wrong := [
            name for name in names if name not in known.fields or known.fields[name].kind != "int"
        ]:
            raise ValueError(f"{measurement}: {', '.join(wrong)}: not declared integers")
        with self._lock:
            series = self._series_of(known, tags)
            form = f"{series.prefix.replace('%', '%%')}{','.join(f'{name}=%di' for name in names)} %d\n"
            anchor, free = self.anchor_ns, series.free
            lines = [form % (*row[:-1], free(row[-1] + anchor)) for row in rows]
            self._lines += lines
            self._pending += sum(map(len, lines))
            self.points += len(lines)
            if (
                self._pending >= _BUFFER_BYTES
                or self.clock.monotonic_ns() - self._flushed_ns >= _FLUSH_NS
            ):
                self._write()

    def phase(
        self,
        name: str,
        begin_ns: int,
        end_ns: int,
        *,
        kind: str = "run",
        subject: str = "",
        detail: str = "",
        reconfig_id: str = "",
        ok: bool = True,
    ) -> None:
        """Record that phase `name` of the run (or of `subject`, a `device` or `host`) lasted from
        begin to end, monotonic ns.
        """
        duration = end_ns - begin_ns
        self.point(
            "phase",
            {"phase": name, "kind": kind, "subject": subject},
            {
                "reconfig_id": reconfig_id,
                "begin_ns": begin_ns - self.start_ns,
                "duration_ns": duration,
                "duration_ms": duration / 1e6,
                "ok": int(ok),
                "detail": detail,
            },
            begin_ns,
        )

    def phase_begin(self, name: str, begin_ns: int) -> None:
        """Record that phase `name` of the run began (monotonic ns); `phase` records it when it has
        ended.
        """
        self.point("phase_begin", {"phase": name}, {"begin_ns": begin_ns - self.start_ns}, begin_ns)

    def flush(self) -> None:
        """Write everything to the kernel: it then survives this process, though not a power cut."""
        with self._lock:
            self._write()

    def close(self) -> None:
        """Flush, force to disk, wait for parts being compressed; safe to call twice."""
        with self._lock:
            if self._fd < 0:
                return
            self._write()
            with suppress(OSError):
                os.fsync(self._fd)
            if self._waiting:
                self._dropped += self._waiting.count(b"\n")
                self._waiting.clear()
            if self._dropped:
                self.trouble = f"{self.directory}: {self._dropped} points of the journal are lost: {self.trouble.rpartition(': ')[2]}"
                self.notify(self.trouble)
            os.close(self._fd)
            self._fd = -1
        for packer in self._packers:
            packer.join()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _series_of(self, known: Measurement, tags: Mapping[str, str]) -> _Series:
        key = (known.name, *tags.values(), *tags)
        if key not in self._series:
            self._series[key] = _Series(self._prefix(known, tags))
        return self._series[key]

    def _prefix(self, known: Measurement, tags: Mapping[str, str]) -> str:
        wanted = known.tags[len(COMMON_TAGS) :]
        if set(tags) != set(wanted):
            raise ValueError(
                f"{known.name}: tags {sorted(tags)} given, exactly {sorted(wanted)} declared"
            )
        return (
            f"{known.name}{self._common}"
            + "".join(f",{name}={tag(str(tags[name]))}" for name in wanted)
            + " "
        )

    @staticmethod
    def _fields(known: Measurement, fields: Mapping[str, FieldValue | None]) -> str:
        written = []
        declared = known.fields
        for name, value in fields.items():
            field = declared.get(name)
            if field is None:
                raise ValueError(
                    f"{known.name}: field {name!r} is not declared, only {', '.join(declared)}"
                )
            if value is None:
                continue
            if field.kind == "int" and isinstance(value, int):
                if INT_MIN <= value <= INT_MAX:
                    written.append(f"{name}={integer(value)}")
            elif field.kind == "float" and isinstance(value, (int, float)):
                if value - value == 0:  # false for nan and the infinities
                    written.append(f"{name}={number(value)}")
            elif field.kind == "str" and isinstance(value, str):
                written.append(f"{name}={text(value)}")
            else:
                raise ValueError(f"{known.name}.{name}: {value!r} is not {field.kind}")
        return ",".join(written)

    def _write(self) -> None:
        self._flushed_ns = self.clock.monotonic_ns()
        if not self._lines and not self._waiting:
            return
        self._waiting += "".join(self._lines).encode("utf-8", "replace")
        self._lines.clear()
        self._pending = 0
        try:
            while self._waiting:
                written = os.write(self._fd, self._waiting)
                self._size += written
                self._torn = self._waiting[written - 1] != _END
                del self._waiting[:written]
        # disk full: a change must not fail because its log cannot be written
        except OSError as error:
            if not self.trouble:
                self.notify(
                    f"the journal cannot be written ({self.path}: {error.strerror or error}); its points wait in memory"
                )
            self.trouble = f"{self.path}: {error.strerror or error}"
            self._spare()
            return
        if self.trouble and not self._dropped:
            self.trouble = ""
            self.notify("the journal can be written again; nothing was lost")
        if self._size >= self._part_bytes:
            self._next_part()

    def _spare(self) -> None:
        """Bound the waiting lines by dropping the oldest whole ones; the rest of a torn line is
        kept, to complete it.
        """
        if len(self._waiting) <= _MOST_WAITING:
            return
        first = self._waiting.find(b"\n") + 1 if self._torn else 0
        cut = self._waiting.find(b"\n", len(self._waiting) - _MOST_WAITING // 2) + 1
        self._dropped += self._waiting.count(b"\n", first, cut)
        del self._waiting[first:cut]

    def _next_part(self) -> None:
        closed = self.path
        self._part += 1
        try:
            fresh = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:  # no space for another file: this part keeps growing
            self._part -= 1
            return
        os.close(self._fd)
        self._fd, self._size = fresh, 0
        if self._compress:
            packer = threading.Thread(target=_pack, args=(closed,), name=f"gzip {closed.name}")
            self._packers.append(packer)
            packer.start()

    def _open(self) -> tuple[int, int, int]:
        parts = sorted(int(p.name.split(".")[0]) for p in self.directory.glob("[0-9]*.lp*"))
        number = parts[-1] if parts else 0
        if (self.directory / f"{number:03d}.lp.gz").exists():
            number += 1
        path = self.directory / f"{number:03d}.lp"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size = os.fstat(fd).st_size
        if size:
            # A torn line could still parse, with half a timestamp: cut it off rather than end it.
            tail = os.pread(fd, min(size, 1 << 20), max(0, size - (1 << 20)))
            size -= len(tail) - (tail.rfind(b"\n") + 1)
            os.ftruncate(fd, size)
        return fd, size, number

    def _anchor(self) -> tuple[int, int]:
        """The run's anchor (wall minus monotonic, ns) and start (monotonic, ns): the stored ones if
        made in this boot.
        """
        path = self.directory / "anchor.json"
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["boot_id"] == boot_id():
                return int(stored["anchor_ns"]), int(stored["start_ns"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        start = self.clock.monotonic_ns()
        anchor = self.clock.time_ns() - start
        fresh = path.with_suffix(".new")
        fresh.write_text(
            json.dumps({"anchor_ns": anchor, "start_ns": start, "boot_id": boot_id()}),
            encoding="utf-8",
        )
        fresh.replace(path)
        return anchor, start


def _pack(path: Path) -> None:
    """Compress a closed part; at any moment the points exist exactly once under a name the reader
    accepts.
    """
    packed = path.with_name(path.name + ".gz")
    unfinished = path.with_name(path.name + ".tmp")
    try:
        with path.open("rb") as plain, gzip.open(unfinished, "wb", compresslevel=1) as out:
            shutil.copyfileobj(plain, out, 1 << 20)
        unfinished.replace(packed)
    except OSError:  # disk full: the part stays as it is
        unfinished.unlink(missing_ok=True)
        return
    path.unlink()
