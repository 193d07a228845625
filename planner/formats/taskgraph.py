"""TopoOpt's task graphs as FlatBuffers: the fields of each table in their order, and a reader and
writer that go by them.

The order is that of the packet simulator's own reader (Flasew/ffsim-opera,
src/clos/taskgraph_generated.h); a field's place in the virtual table is 4 + 2 x its number
(FlatBuffers internals). Files are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from optics.extras import extra
from planner.model.demand import Infeasible

TABLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "TaskGraph": (
        ("ngpupernode", "u32"),
        ("nnode", "u32"),
        ("nswitch", "u32"),
        ("intergpubw", "f32"),
        ("drambw", "f32"),
        ("netbw", "f32"),
        ("conn", "[Connection]"),
        ("ops", "[Operator]"),
        ("tasks", "[Task]"),
        ("devices", "[Device]"),
        ("routes", "[Route]"),
        ("rings", "[Rings]"),
    ),
    "Task": (
        ("type", "i16"),
        ("taskid", "u64"),
        ("deviceid", "u64"),
        ("runtime", "f32"),
        ("xfersize", "u64"),
        ("nexttasks", "[u64]"),
    ),
    "Device": (
        ("type", "i16"),
        ("deviceid", "u64"),
        ("nodeid", "u64"),
        ("deviceproperty", "u64"),
        ("bandwidth", "u64"),
    ),
    "Connection": (("fromnode", "u32"), ("tonode", "u32"), ("nconn", "u32")),
    "Route": (("fromnode", "u32"), ("tonode", "u32"), ("paths", "[Path]")),
    "Path": (("hopnode", "[u32]"), ("chance", "f32")),
    "Operator": (("opid", "u64"), ("type", "u64"), ("name", "str")),
    "Rings": (("ringsz", "u64"), ("ringpaths", "[RingDescriptor]")),
    "RingDescriptor": (("jumps", "[i32]"),),
}
"""Name and kind of each field; the first table is the root."""

FORWARD, BACKWARD, COMM, UPDATE, BARRIER, NOMINAL_COMM, ALLREDUCE = range(7)
"""Kinds of task. The packet simulator takes all but COMM."""
GPU, CPU, NW_COMM, NW_NOMINAL = 0, 1, 13, 14
"""Kinds of device that matter here; the property of the last two is source * (nodes + switches) +
destination.
"""
GBPS = 125_000
"""1 Gb/s in the files' unit of bandwidth, kB/s (100 Gb/s is written 12 500 000)."""

_FORMS = {"i16": "<h", "u32": "<I", "i32": "<i", "u64": "<Q", "f32": "<f"}
_MOST = 50_000_000
"""Elements read of one file; an offset that leads back would otherwise be followed without end."""


def read(data: bytes) -> dict[str, Any]:
    """The root table, tables as dictionaries, absent fields as nothing. Raises: Infeasible - these
    bytes are no task graph.
    """
    try:
        return _Reader(data).table("TaskGraph", struct.unpack_from("<I", data, 0)[0])
    except (struct.error, IndexError, UnicodeDecodeError, RecursionError) as error:
        raise Infeasible(
            f"not a task graph: {error}",
            "give a taskgraph.fbuf that FlexNet wrote with --taskgraph",
        ) from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.left = data, _MOST

    def at(self, form: str, place: int) -> Any:
        if place < 0:
            raise IndexError(f"an offset leads {-place} bytes before the file")
        return struct.unpack_from(form, self.data, place)[0]

    def table(self, name: str, place: int) -> dict[str, Any]:
        self.spend(1)
        fields = place - self.at("<i", place)
        size = self.at("<H", fields)
        found: dict[str, Any] = {}
        for number, (field, kind) in enumerate(TABLES[name]):
            entry = 4 + 2 * number
            offset = self.at("<H", fields + entry) if entry + 2 <= size else 0
            if offset:
                found[field] = self.value(kind, place + offset)
            else:
                found[field] = [] if kind.startswith("[") else "" if kind == "str" else 0
        return found

    def value(self, kind: str, place: int) -> Any:
        if kind in _FORMS:
            return self.at(_FORMS[kind], place)
        place += self.at("<I", place)
        count = self.at("<I", place)
        inner = kind.strip("[]")
        width = struct.calcsize(_FORMS[inner]) if inner in _FORMS else 1 if kind == "str" else 4
        if place + 4 + count * width > len(self.data):
            raise IndexError(
                f"{count} elements at {place} lead beyond the file's {len(self.data)} bytes"
            )
        self.spend(count)
        if kind == "str":
            return self.data[place + 4 : place + 4 + count].decode()
        if inner in _FORMS:
            return list(struct.unpack_from(f"<{count}{_FORMS[inner][1]}", self.data, place + 4))
        elements = range(place + 4, place + 4 + 4 * count, 4)
        return [self.table(inner, element + self.at("<I", element)) for element in elements]

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise IndexError(f"more than {_MOST} elements")


def write(root: Mapping[str, Any]) -> bytes:
    """The file of a root table. Fields that are left out or nothing are absent; empty lists are
    present, for readers that ask for their size without checking for presence (the packet
    simulator)."""
    with extra("traces", "task graphs"):
        import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(_table(builder, "TaskGraph", root))
    return bytes(builder.Output())


def _table(builder: Any, name: str, values: Mapping[str, Any]) -> int:
    kinds = enumerate(TABLES[name])
    given = [
        (n, field, kind)
        for n, (field, kind) in kinds
        if values.get(field) or (kind.startswith("[") and field in values)
    ]
    parts = {
        field: _part(builder, kind, values[field]) for _, field, kind in given if kind not in _FORMS
    }
    builder.StartObject(len(TABLES[name]))
    for number, field, kind in given:
        if field in parts:
            builder.PrependUOffsetTRelativeSlot(number, parts[field], 0)
        else:
            _slot(builder, kind)(number, values[field], 0)
    return int(builder.EndObject())


def _slot(builder: Any, kind: str) -> Any:
    names = {"i16": "Int16", "u32": "Uint32", "u64": "Uint64", "f32": "Float32"}
    return getattr(builder, f"Prepend{names[kind]}Slot")


def _part(builder: Any, kind: str, value: Any) -> int:
    if kind == "str":
        return int(builder.CreateString(value))
    inner = kind.strip("[]")
    if inner in _FORMS:
        prepend = {
            "u32": builder.PrependUint32,
            "i32": builder.PrependInt32,
            "u64": builder.PrependUint64,
        }[inner]
        return _vector(builder, list(value), struct.calcsize(_FORMS[inner]), prepend)
    return _vector(
        builder, [_table(builder, inner, one) for one in value], 4, builder.PrependUOffsetTRelative
    )


def _vector(builder: Any, values: Sequence[int], width: int, prepend: Any) -> int:
    builder.StartVector(width, len(values), width)
    for value in reversed(values):
        prepend(value)
    return int(builder.EndVector())
