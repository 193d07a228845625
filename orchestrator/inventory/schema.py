"""Check parsed files against pydantic models; errors are in plain English, with line and column of
the user's file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from optics.plain import did_you_mean
from orchestrator.inventory.positions import MAX_LINES, Path, Problems


class Edge(BaseModel):
    """A mapping in a user's file: strict types, unknown keys refused, keys that start with `x_` the
    user's own and ignored.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        populate_by_name=False,
        allow_inf_nan=False,
        # most starts read few kinds of files, and a model is built as part of those that contain it
        defer_build=True,
        json_schema_extra={"patternProperties": {"^x_": {}}},
    )

    @model_validator(mode="before")
    @classmethod
    def _without_private_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            return {
                key: value
                for key, value in data.items()
                if not (isinstance(key, str) and key.startswith("x_"))
            }
        return data


Model = TypeVar("Model", bound=BaseModel)


def check(
    model: type[Model],
    value: Any,
    problems: Problems,
    path: Path = (),
    place: Callable[[Path], Path] | None = None,
) -> Model | None:
    """`value` as a `model`, or None after adding everything wrong with it to `problems`.

    `path`: the place of `value` in the document; `place`, if given, maps a path inside the value to
    its path in the document.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        fields = _fields(model, ())
        # perhaps a file of secrets
        if not path and isinstance(value, Mapping) and value and not _like(value, fields):
            problems.add(
                (), f"this is another kind of file: it has none of the fields {', '.join(fields)}"
            )
            return None
        found: dict[Path, list[ErrorDetails]] = {}
        for detail in error.errors(include_url=False):
            inner = _inside(detail["loc"], value)
            found.setdefault(
                (*inner, "", str(detail["loc"][-1])) if detail["type"] == "missing" else inner, []
            ).append(detail)
        spot, whole = problems.document.spot, place or (lambda inner: (*path, *inner))
        in_order = sorted(
            found.values(), key=lambda details: spot(whole(_inside(details[0]["loc"], value)))
        )
        for count, details in enumerate(in_order):
            inner = _inside(details[0]["loc"], value)
            # only counted: a hostile file can have hundreds of thousands, and good words take time
            if count >= MAX_LINES:
                problems.add(
                    whole(inner), details[0]["msg"], key=details[0]["type"] == "extra_forbidden"
                )
                continue
            if details[0]["type"] == "literal_error" and isinstance(details[0]["input"], list):
                if any(inner == other[: len(inner)] != other for other in found):
                    continue  # a list is allowed in place of the word, and something in it is wrong
                details = details[1:] or details
            # not the file it should be: perhaps one of secrets
            if not (inner or path) and details[0]["type"] in _KINDS:
                problems.add(
                    (), f"wanted {_KINDS[details[0]['type']]}, got {_kind(details[0]['input'])}"
                )
                continue
            what, key, inner = _text(details[0], inner, model)
            kinds = [_KINDS[detail["type"]] for detail in details if detail["type"] in _KINDS]
            if kinds and details[0]["type"] == "literal_error":
                what = what.replace(", got", f" or {kinds[0]}, got", 1)
            elif len(kinds) > 1:  # a union reports each of its members
                what = f"wanted {', '.join(kinds[:-1])} or {kinds[-1]}, got {show(details[0]['input'])}"
            problems.add(whole(inner), what, key=key)
        return None


def _like(value: Mapping[Any, Any], fields: Iterable[str]) -> bool:
    """Whether a field is there, or one that is misspelt."""
    return bool(value.keys() & {*fields}) or any(
        did_you_mean(key, fields) for key in [*value][:MAX_LINES]
    )


def attempt(model: type[Model], value: Any) -> Model | None:
    """`value` as a `model` if it is one, else None: for further checks after `check` has reported
    the errors.
    """
    try:
        return model.model_validate(value)
    except ValidationError:
        return None


def _inside(loc: tuple[int | str, ...], value: Any) -> Path:
    """The part of pydantic's location that exists in the file: it adds names of union members and
    `[key]` marks.
    """
    path: list[int | str] = []
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        if isinstance(value, Mapping):
            if part not in value and not last:
                continue
            path.append(part)
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            path.append(part)
            value = value[part]
    if path and path[-1] == "[key]":
        path.pop()
    return tuple(path)


def _fields(model: type[BaseModel], inner: Path) -> Iterable[str]:
    """Field names, as written in the file, of the model that holds `inner`."""
    current: Any = model
    for part in inner:
        field = (
            next((f for n, f in current.model_fields.items() if (f.alias or n) == part), None)
            if isinstance(part, str)
            else None
        )
        if field is not None:
            found = _model_in(field.annotation)
            if found is None:
                return ()
            current = found
    return [f.alias or n for n, f in current.model_fields.items()]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        found = _model_in(inner)
        if found is not None:
            return found
    return None


NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
END = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}(:p[0-9]{1,3})?$"
PORT = END.replace("?", "")
INTERFACE = r"^[^\s/:]{1,15}$"
OPTION = r"^[a-z][a-z0-9_]{0,62}$"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]{0,126}$"
ACCOUNT = r"^[a-z_][a-z0-9_-]{0,31}$"
LAUNCHERS = (
    r"TESTBED_.*|LD_.*|PYTHON.*|PATH|HOME|USER|LOGNAME|SHELL|(BASH_)?ENV|RANK|WORLD_SIZE|LOCAL_(RANK|WORLD_SIZE)|NODE_RANK|"
    r"GROUP_.*|ROLE_.*|MASTER_(ADDR|PORT)|TORCHELASTIC_.*"
)
"""Variables of a job that only the launcher and the hosts set: its program, its user, and the place
of each rank.
"""
PARTITION = r"^[a-z][a-z0-9-]{0,15}$"
CPUS = r"^\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*$"
MIG = r"^MIG-[A-Za-z0-9/-]{1,95}$"
LINE = r"^[^\x00\r\n]{0,4096}$"
PATTERNS = {
    NAME: "a name of letters, digits, '.', '_' and '-', at most 63",
    END: "a host port such as gpu01:p1, or a host alone",
    PORT: "a host port such as gpu01:p1",
    INTERFACE: "the name of a Linux interface, at most 15 characters",
    OPTION: "an option name in lower-case letters, digits and '_'",
    VARIABLE: "the name of an environment variable",
    ACCOUNT: "a user name in lower-case letters, digits, '_' and '-', at most 32",
    LINE: "one line of text, at most 4096 characters",
    PARTITION: "the name of a partition: lower-case letters, digits and '-', a letter first, at most 16",
    CPUS: "processors such as 0-7,16-23",
    MIG: "the id of a MIG device, MIG-...",
}
"""What each pattern requires, in words."""

_KINDS = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_LIMITS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def _text(detail: ErrorDetails, inner: Path, model: type[BaseModel]) -> tuple[str, bool, Path]:
    """The message, whether it is about the key, and the path it is about."""
    kind, got, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown field{did_you_mean(inner[-1], _fields(model, inner[:-1]))}", True, inner
    if kind == "missing":
        return f"the field {detail['loc'][-1]} is missing", False, inner[:-1]
    if kind in _KINDS:
        return f"wanted {_KINDS[kind]}, got {show(got)}", False, inner
    if kind in _LIMITS:
        name, text = _LIMITS[kind]
        return f"wanted {text} {context[name]:g}, got {show(got)}", False, inner
    if kind == "literal_error":
        wanted = str(context["expected"]).replace("'", "")
        return (
            f"wanted {wanted}, got {show(got)}{did_you_mean(got, wanted.replace(' or ', ', ').split(', '))}",
            False,
            inner,
        )
    if kind in ("too_short", "too_long"):
        limit, count = (
            ("least", context["min_length"])
            if kind == "too_short"
            else ("most", context["max_length"])
        )
        return (
            f"wanted at {limit} {count} item{'s' if count != 1 else ''}, got {context['actual_length']}",
            False,
            inner,
        )
    if kind in ("string_too_short", "string_too_long"):
        limit = (
            f"at least {context['min_length']}"
            if kind == "string_too_short"
            else f"at most {context['max_length']}"
        )
        return f"wanted {limit} characters, got {show(got)}", False, inner
    if kind == "string_pattern_mismatch":
        text = PATTERNS.get(str(context["pattern"]), f"text that matches {context['pattern']}")
        return f"wanted {text}, got {show(got)}", inner[-1:] == (got,), inner
    if kind == "finite_number":
        return f"wanted a finite number, got {got}", False, inner
    if kind == "value_error":
        return str(context.get("error", detail["msg"])), False, inner
    return detail["msg"], False, inner


def _kind(value: Any) -> str:
    """What a value is, without the value."""
    texts = {bool: "true or false", str: "text", int: "a number", float: "a number"}
    return texts.get(type(value)) or show(value)


def show(value: Any) -> str:
    """A value as in the file, shortened."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 40 else f'"{value[:37]}..."'
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else f"{text[:20]}..."
