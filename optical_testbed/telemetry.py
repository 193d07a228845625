"""The telemetry of a run as rows, and as a pandas DataFrame where pandas is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, overload

if TYPE_CHECKING:
    import pandas

    from orchestrator.telemetry.lineprotocol import Point

    Row: TypeAlias = Point


@dataclass(frozen=True, slots=True)
class Rows(Sequence["Row"]):
    """Telemetry of one run in the order of its journal.

    A row has `measurement`, `tags` (names to texts), `fields` (names to numbers or texts) and
    `time_ns`, nanoseconds since the epoch. docs/reference/telemetry.md lists them all with units.
    trouble: what could not be read, a line each.
    """

    run: str
    rows: tuple[Row, ...]
    trouble: tuple[str, ...] = ()

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> Rows: ...
    def __getitem__(self, at: int | slice) -> Row | Rows:
        return self.rows[at] if isinstance(at, int) else Rows(self.run, self.rows[at], self.trouble)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {', '.join(self.measurements) or 'nothing'}, run {self.run}>"

    @property
    def measurements(self) -> tuple[str, ...]:
        """The measurements of these rows, in the order in which they appear."""
        return tuple(dict.fromkeys(row.measurement for row in self.rows))

    @property
    def units(self) -> Mapping[str, str]:
        """The unit of each field of these rows that has one."""
        from orchestrator.telemetry.names import MEASUREMENTS

        known = [MEASUREMENTS[name] for name in self.measurements if name in MEASUREMENTS]
        return {
            name: field.unit for one in known for name, field in one.fields.items() if field.unit
        }

    def frame(self) -> pandas.DataFrame:
        """A DataFrame with a column per tag and field (and `measurement`, if there are several),
        indexed by UTC time.

        Its `attrs` have the units. Raises: ImportError - pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "a DataFrame needs pandas: pip install 'optical-testbed[analysis]'; without it, iterate over the rows",
                name="pandas",
            ) from error
        several = len(self.measurements) > 1
        table = [
            {**({"measurement": row.measurement} if several else {}), **row.tags, **row.fields}
            for row in self.rows
        ]
        times = pandas.to_datetime([row.time_ns for row in self.rows], unit="ns", utc=True)
        found = pandas.DataFrame(table, index=pandas.DatetimeIndex(times, name="time"))
        found.attrs["units"] = dict(self.units)
        return found
