"""Chakra execution traces: what one rank does, as nodes and what each waits for.

A file holds the metadata, then the nodes, each behind its length. Names and numbers of the fields
are those of mlcommons/chakra, schema/protobuf/et_def.proto; tensors and storage are left out, which
protobuf passes over. Needs the package protobuf.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from typing import Any

from optics.extras import extra
from planner.model.demand import Infeasible

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, BARRIER = 0, 2, 6, 7, 8, 9
VERSION = "0.0.4"
AGAIN = "give the traces of mlcommons/chakra's converter or of ASTRA-sim, one file for each rank"
MOST_NODES = 1_000_000
"""Nodes of all ranks together."""

Value = float | bool | str

_SCALARS = {
    "double": 3, "float": 5, "int32": 7, "int64": 9, "uint32": 11, "uint64": 13, "sint32": 15,
    "sint64": 17, "fixed32": 19, "fixed64": 21, "sfixed32": 23, "sfixed64": 25, "bool": 27,
    "string": 29,
}  # fmt: skip
_MESSAGES: Mapping[str, Sequence[tuple[str, int, str]]] = {
    "AttributeProto": (
        ("name", 1, "string"),
        *((f"{kind}_val", number, kind) for kind, number in _SCALARS.items()),
    ),
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "[AttributeProto]")),
    "Node": (
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        ("type", 3, "int32"),
        ("ctrl_deps", 4, "[uint64]"),
        ("data_deps", 5, "[uint64]"),
        ("duration_micros", 7, "uint64"),
        ("attr", 10, "[AttributeProto]"),
    ),
}


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. after: numbers of the nodes it waits for."""

    id: int
    name: str
    kind: int
    after: tuple[int, ...] = ()
    micros: int = 0
    attributes: Mapping[str, Value] = field(default_factory=dict)


def written(nodes: Iterable[Node]) -> bytes:
    """The trace of these nodes. Raises: Missing - protobuf is not installed."""
    from google.protobuf.proto import serialize_length_prefixed

    kinds, out = _classes(), BytesIO()
    serialize_length_prefixed(kinds["GlobalMetadata"](version=VERSION), out)
    for node in nodes:
        message = kinds["Node"](
            id=node.id,
            name=node.name,
            type=node.kind,
            data_deps=node.after,
            duration_micros=node.micros,
        )
        for name, value in node.attributes.items():
            message.attr.add(name=name, **{_kind(value): value})
        serialize_length_prefixed(message, out)
    return out.getvalue()


def _kind(value: Value) -> str:
    kinds = {bool: "bool_val", str: "string_val", int: "int64_val", float: "double_val"}
    return kinds[type(value)]


def read(data: bytes, rank: int, most: int = MOST_NODES) -> list[Node]:
    """The nodes of a rank's trace. Raises: Infeasible - these bytes are no trace, or have more than
    `most` nodes; Missing - protobuf is not installed.
    """
    kinds, file = _classes(), BytesIO(data)
    if _next(kinds["GlobalMetadata"], file, rank) is None:
        raise Infeasible(f"rank {rank}: the trace is empty", AGAIN)
    nodes: list[Node] = []
    while (message := _next(kinds["Node"], file, rank)) is not None:
        if len(nodes) == most:
            raise Infeasible(
                f"rank {rank}: the traces have more than {MOST_NODES} nodes, the most that is read",
                "give the traces of one iteration",
            )
        attributes = {
            one.name: getattr(one, kind)
            for one in message.attr
            if (kind := one.WhichOneof("value")) is not None
        }
        after = (*message.data_deps, *message.ctrl_deps)
        nodes.append(
            Node(message.id, message.name, message.type, after, message.duration_micros, attributes)
        )
    return nodes


def _next(kind: Any, file: BytesIO, rank: int) -> Any:
    from google.protobuf.message import DecodeError
    from google.protobuf.proto import parse_length_prefixed

    at = file.tell()
    try:
        return parse_length_prefixed(kind, file)
    except (DecodeError, ValueError, OverflowError) as error:
        raise Infeasible(f"rank {rank}: no Chakra message at byte {at}: {error}", AGAIN) from error


@cache
def _classes() -> Mapping[str, Any]:
    """The class of each message. Raises: Missing."""
    with extra("traces", "Chakra traces"):
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from google.protobuf import proto as _  # noqa: F401 - reads and writes lengths
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="chakra.proto", package="ChakraProtoMsg", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
        for label, number, kind in fields:
            one = message.field.add(
                name=label,
                number=number,
                label=kinds.LABEL_REPEATED if kind.startswith("[") else kinds.LABEL_OPTIONAL,
            )
            bare = kind.strip("[]")
            if bare in _MESSAGES:
                one.type, one.type_name = kinds.TYPE_MESSAGE, f".ChakraProtoMsg.{bare}"
            else:
                one.type = kinds.Type.Value(f"TYPE_{bare.upper()}")
            if label.endswith("_val"):
                one.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
        for name in _MESSAGES
    }
