"""Read a run's telemetry back, part after part, skipping what a crash tore."""

from __future__ import annotations

import gzip
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.telemetry.lineprotocol import Point, parse
from orchestrator.telemetry.names import MEASUREMENTS, OF_JOBS

_KINDS: Mapping[str, type] = {"int": int, "float": float, "str": str}
_TYPES = {
    name: {field: _KINDS[f.kind] for field, f in known.fields.items()}
    for name, known in MEASUREMENTS.items()
}
_TAGS = {name: frozenset(known.tags) for name, known in MEASUREMENTS.items()}
_ALWAYS: Mapping[str, tuple[str, ...]] = {
    "phase": ("begin_ns", "duration_ns", "duration_ms"),
    "device_phase": ("phase",),
}
"""Fields without which a point has no meaning; the journal always writes them."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What the journal of the run that launched a job has of it, from `begin_ns` until before
    `end_ns` (wall time).
    """

    run_dir: Path
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run's journal, with what its job did in its time where another run launched that job."""

    run_dir: Path
    job: tuple[Stretch, ...] = ()

    def read(self, only: Collection[str] = (), trouble: list[str] | None = None) -> Iterator[Point]:
        """As `read_points`: first the run's own points, then the job's."""
        yield from read_points(self.run_dir, only, trouble)
        if wanted := [name for name in OF_JOBS if not only or name in only]:
            for stretch in self.job:
                yield from read_points(
                    stretch.run_dir, wanted, trouble, [(stretch.begin_ns, stretch.end_ns - 1)]
                )


def part_files(run_dir: Path) -> list[Path]:
    """The part files of a run, oldest first; a part that exists plain and compressed counts
    once.
    """
    found: dict[str, Path] = {}
    for path in sorted((run_dir / "telemetry").glob("[0-9]*.lp*")):
        if path.name.endswith((".lp", ".lp.gz")):
            found.setdefault(path.name.removesuffix(".gz"), path)
    return list(found.values())


def read_points(
    run_dir: Path,
    only: Collection[str] = (),
    trouble: list[str] | None = None,
    near: Collection[tuple[int, int]] | None = None,
) -> Iterator[Point]:
    """Yield the points of a run in file order, of the measurements in `only` if given, of these
    spans of wall time (ns) if given.

    A line that cannot be read is skipped; `trouble` collects `000.lp:17: why` for each. A last line
    without a line end is always skipped: with half a timestamp it would parse to a wrong time.
    """
    wanted = tuple(f"{name},".encode() for name in only)
    for path in part_files(run_dir):
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            for count, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    if trouble is not None:
                        trouble.append(f"{path.name}:{count}: torn last line")
                    break
                if (wanted and not line.startswith(wanted)) or (
                    near is not None and not _within(line, near)
                ):
                    continue
                try:
                    point = is_declared(parse(line[:-1].decode("utf-8")))
                except ValueError as error:
                    if trouble is not None:
                        trouble.append(f"{path.name}:{count}: {error}")
                    continue
                yield point


def is_declared(point: Point) -> Point:
    """The point, if a journal could have written it: a line damaged on disk may still parse.

    Names that are not declared (any more) are let through. Raises: ValueError - a tag or a field
    that is always there is not, or a field is of another type.
    """
    name = point.measurement
    types = _TYPES.get(name)
    if types is None:
        return point
    if not _TAGS[name] <= point.tags.keys():
        raise ValueError(f"{name} without {', '.join(sorted(_TAGS[name] - point.tags.keys()))}")
    for field in _ALWAYS.get(name, ()):
        if field not in point.fields:
            raise ValueError(f"{name} without {field}")
    for field, value in point.fields.items():
        if type(value) is not types.get(field, type(value)):
            raise ValueError(f"{name}.{field} is not {types[field].__name__}: {str(value)[:80]!r}")
    return point


def _within(line: bytes, near: Collection[tuple[int, int]]) -> bool:
    """Whether a line's time is in one of these spans; a line without a time passes, for the parser
    to reject.
    """
    try:
        at = int(line.rpartition(b" ")[2])
    except ValueError:
        return True
    return any(begin <= at <= end for begin, end in near)
