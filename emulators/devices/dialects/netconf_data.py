"""NETCONF's data: a schema in few words, subtree filters (RFC 6241 6) and edits (7.2) of trees of
elements.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from lxml import etree

from emulators.devices.dialects.xml import NETCONF, element, local, namespace, text

OPERATIONS = ("merge", "replace", "create", "delete", "remove")
_OPERATION = f"{{{NETCONF}}}operation"


class RpcError(Exception):
    """An <rpc-error> (RFC 6241 4.3, appendix A). `info`: elements of error-info by name."""

    def __init__(
        self,
        tag: str,
        message: str = "",
        *,
        kind: str = "application",
        app_tag: str = "",
        path: str = "",
        info: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(tag, message)
        self.tag, self.message, self.kind, self.app_tag, self.path = (
            tag,
            message,
            kind,
            app_tag,
            path,
        )
        self.info = dict(info or {})

    def element(self) -> etree._Element:
        error = etree.Element(f"{{{NETCONF}}}rpc-error")
        parts = {
            "error-type": self.kind,
            "error-tag": self.tag,
            "error-severity": "error",
            "error-app-tag": self.app_tag,
        }
        parts |= {"error-path": self.path}
        for name, value in parts.items():
            if value:
                etree.SubElement(error, f"{{{NETCONF}}}{name}").text = value
        if self.message:
            reported = etree.SubElement(error, f"{{{NETCONF}}}error-message")
            reported.set("{http://www.w3.org/XML/1998/namespace}lang", "en")
            reported.text = self.message
        if self.info:
            info = etree.SubElement(error, f"{{{NETCONF}}}error-info")
            for name, value in self.info.items():
                etree.SubElement(info, f"{{{NETCONF}}}{name}").text = value
        return error


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """One node: a leaf (no children), a container, or a list (with the name of its key). writable:
    part of the configuration.

    space: its namespace, where that is not its parent's.
    """

    name: str
    children: Mapping[str, Schema] = field(default_factory=dict)
    key: str = ""
    writable: bool = True
    space: str = ""

    @classmethod
    def of(cls, name: str, *children: Schema, key: str = "", writable: bool = True) -> Schema:
        return cls(name, {child.name: child for child in children}, key, writable)


@lru_cache(maxsize=1024)
def _below(schema: Schema, space: str) -> Mapping[str, Schema]:
    """Return the children of a node in namespace `space` by their tags."""
    return {
        f"{{{its}}}{name}" if (its := child.space or space) else name: child
        for name, child in schema.children.items()
    }


def selected(data: Iterable[etree._Element], wanted: etree._Element) -> list[etree._Element]:
    """Return what a subtree filter leaves of `data`."""
    found = []
    for node in data:
        for child in wanted:
            kept = _kept(node, child)
            if kept is not None:
                found.append(kept)
    return found


def _named(node: etree._Element, wanted: etree._Element) -> bool:
    """The namespace may be left open (RFC 6241 6.2.1); one inherited from the message itself is
    taken so too.
    """
    space = namespace(str(wanted.tag))
    if local(str(node.tag)) != local(str(wanted.tag)) or (
        space not in ("", NETCONF) and space != namespace(str(node.tag))
    ):
        return False
    return all(node.get(name) == value for name, value in wanted.attrib.items())


def _kept(node: etree._Element, wanted: etree._Element) -> etree._Element | None:
    if not _named(node, wanted):
        return None
    if not len(wanted):
        if text(wanted) and text(node) != text(wanted):
            return None
        return copy.deepcopy(node)
    content = [w for w in wanted if not len(w) and text(w)]
    for match in content:
        if not any(_named(child, match) and text(child) == text(match) for child in node):
            return None
    if len(content) == len(wanted):
        return copy.deepcopy(node)
    kept = element(str(node.tag), node.nsmap, node.attrib)
    parts: dict[str, list[etree._Element]] = {}
    for part in wanted:
        parts.setdefault(local(str(part.tag)), []).append(part)
    for child in node:
        for part in parts.get(local(str(child.tag)), ()):
            if (piece := _kept(child, part)) is not None:
                kept.append(piece)
                break
    return kept if len(kept) else None


Entries = dict[str, dict[str, etree._Element]]
"""Tag -> key -> entry, of one parent; what is no list has the key ""."""


def keys_of(
    edits: Iterable[etree._Element], schemas: Mapping[str, Schema]
) -> frozenset[str] | None:
    """Return the keys of the list entries below the top nodes that edits are about; None: they may
    be about all of them.
    """
    keys = set()
    for edit in edits:
        schema = schemas.get(str(edit.tag))
        if schema is None or _reported(edit) not in (None, "merge"):
            return None
        for child in edit:
            known = schema.children.get(local(str(child.tag)))
            key = _key(child, known) if known is not None and known.key else None
            keys.add("" if key is None else text(key))
    return frozenset(keys)


def edited(
    old: Sequence[etree._Element],
    edits: Iterable[etree._Element],
    default: str,
    schemas: Mapping[str, Schema],
) -> list[etree._Element]:
    """Return the configuration after an <edit-config>; `old` stays as it is. schemas: by the tag of
    each top node.

    Raises: RpcError - an element is unknown, exists already or does not, or lacks its key.
    """
    root = etree.Element("config")
    root.extend(copy.deepcopy(node) for node in old)
    entries: Entries = {}
    for edit in edits:
        schema = schemas.get(str(edit.tag))
        if schema is None:
            raise _about("unknown-element", edit, "no such element")
        _apply(root, edit, default, schema, entries)
    return list(root)


def _about(tag: str, about: etree._Element, message: str, **info: str) -> RpcError:
    name = local(str(about.tag))
    if tag in ("unknown-element", "bad-element", "missing-element"):
        info = {"bad-element": name, **info}
    return RpcError(
        tag,
        f"{name}: {message}",
        path=_path(about),
        info={k.replace("_", "-"): v for k, v in info.items()},
    )


def _path(about: etree._Element) -> str:
    parts = [local(str(about.tag))]
    for above in about.iterancestors():
        if local(str(above.tag)) == "config":
            break
        parts.append(local(str(above.tag)))
    return "/" + "/".join(reversed(parts))


def _reported(edit: etree._Element) -> str | None:
    """The attribute without a prefix is taken too: ONOS sends it so (CODE)."""
    return edit.get(_OPERATION) or edit.get("operation")


def _operation(edit: etree._Element, default: str) -> str:
    message = _reported(edit)
    if message is None:
        return default
    if message not in OPERATIONS:
        raise RpcError(
            "bad-attribute",
            f"operation {message}",
            info={"bad-attribute": "operation", "bad-element": local(str(edit.tag))},
        )
    return message


def _apply(
    parent: etree._Element, edit: etree._Element, default: str, schema: Schema, siblings: Entries
) -> None:
    """Carry out `edit` under `parent`. siblings: what is there, looked up once for all edits of one
    parent.
    """
    operation = _operation(edit, default)
    if not schema.writable:
        raise _about("unknown-element", edit, "is not configuration")
    tag = str(edit.tag)
    entries, key = _entries(parent, edit, tag, schema, siblings)
    existing = entries.get(key)
    exists = existing is not None and (not schema.children or bool(schema.key) or len(existing) > 0)
    match operation:
        case "create" if exists:
            raise _about("data-exists", edit, "exists already")
        case "delete" if not exists:
            raise _about("data-missing", edit, "does not exist")
        case "none" if not exists and (schema.key or not schema.children):
            raise _about("data-missing", edit, "does not exist")
    if operation in ("delete", "remove", "replace", "create") and existing is not None:
        parent.remove(existing)
        entries.pop(key, None)
        existing = None
    if operation in ("delete", "remove"):
        return
    if (
        existing is None
        and not edit.keys()
        and operation != "none"
        and _plain(edit, schema, namespace(tag))
    ):
        entries[key] = copy.deepcopy(edit)
        parent.append(entries[key])
        return
    if existing is None:
        existing = entries[key] = etree.SubElement(parent, tag)
    if not schema.children:
        if len(edit):
            raise _about("unknown-element", edit[0], "no such element")
        if operation != "none":
            existing.text = text(edit)
        return
    below: Entries = {}
    inherited = "merge" if operation in ("replace", "create") else operation
    space = namespace(tag)
    children = _below(schema, space)
    for child in edit:
        name = str(child.tag)
        known = children.get(name)
        if known is None:
            raise _about("unknown-element", child, "no such element")
        if schema.key == known.name and existing.find(name) is not None:
            continue
        _apply(existing, child, "merge" if schema.key == known.name else inherited, known, below)


def _plain(edit: etree._Element, schema: Schema, space: str) -> bool:
    """Return whether what is new can be copied as it stands: known leaves, once each, without
    attributes or white space.
    """
    if not schema.children or edit.text or edit.tail:
        return False
    children, seen = _below(schema, space), set()
    for child in edit:
        name = str(child.tag)
        known = children.get(name)
        if (
            known is None
            or known.key
            or not known.writable
            or name in seen
            or child.keys()
            or child.tail
        ):
            return False
        seen.add(name)
        if known.children:
            if not _plain(child, known, known.space or space):
                return False
        elif len(child) or child.text != text(child):
            return False
    return True


def _key(entry: etree._Element, schema: Schema) -> etree._Element | None:
    """Return the key of an entry of the list that `schema` is."""
    space = namespace(str(entry.tag))
    return next(entry.iterchildren(f"{{{space}}}{schema.key}" if space else schema.key), None)


def _entries(
    parent: etree._Element, edit: etree._Element, tag: str, schema: Schema, siblings: Entries
) -> tuple[dict[str, etree._Element], str]:
    """Return the entries by key of the list that `edit` is an entry of, and its own key, which is
    empty where it is no list.
    """
    key = _key(edit, schema) if schema.key else None
    if schema.key and (key is None or not text(key)):
        raise _about("missing-element", edit, f"lacks its key {schema.key}", bad_element=schema.key)
    try:
        return siblings[tag], "" if key is None else text(key)
    except KeyError:
        found = siblings[tag] = {}
    for node in parent.iterchildren(tag):
        own = _key(node, schema) if schema.key else None
        if own is not None or not schema.key:
            found.setdefault("" if own is None else text(own), node)
    return found, "" if key is None else text(key)
