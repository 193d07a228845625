"""NETCONF messages (RFC 6241): replies read without ever resolving an entity, errors as words,
trees found by local names.

Devices differ in prefixes and now and then leave a namespace out, so elements are found by their
local names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from lxml import etree

from drivers.wire.rest import decimal, quote
from optics import Garbled, Refused
from optics.plain import printable

NC = "urn:ietf:params:xml:ns:netconf:base:1.0"
Element = etree._Element


def parse_reply(raw: str) -> Element:
    """Read an `rpc-reply`; warnings are let pass.

    Raises: Garbled - not XML, a document type (entities are not resolved, ever), or no rpc-reply.
    Refused - it holds an rpc-error, in the device's words.
    """
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(raw.encode("utf-8"), parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise Garbled(f"not XML ({error}): {quote(raw)}") from None
    info: Any = root.getroottree().docinfo
    if info.doctype or next(root.iter(etree.Entity), None) is not None:
        raise Garbled(f"a document type or an entity: {quote(raw)}")
    if name(root) != "rpc-reply":
        raise Garbled(f"no rpc-reply: {quote(raw)}")
    if errors := [message for each in children(root, "rpc-error") if (message := _error(each))]:
        raise Refused("; ".join(errors))
    return root


def data(reply: Element) -> Element:
    """The `data` of a reply to get and get-config. Raises: Garbled - there is none."""
    found = child(reply, "data")
    if found is None:
        raise Garbled(f"no data: {quote(show(reply))}")
    return found


def done(reply: Element) -> None:
    """Check that a reply is `ok`. Raises: Garbled."""
    if child(reply, "ok") is None:
        raise Garbled(f"neither ok nor an error: {quote(show(reply))}")


def name(element: Element) -> str:
    """The local name; lxml itself refuses to take some names apart that its parser let through."""
    return str(element.tag).rpartition("}")[2]


def children(element: Element, wanted: str) -> Iterator[Element]:
    """Direct children of that local name."""
    return element.iterchildren(f"{{*}}{wanted}")


def child(element: Element, *path: str) -> Element | None:
    """The first element down `path`, None when a step is missing."""
    found: Element | None = element
    for step in path:
        found = next(children(found, step), None) if found is not None else None
    return found


def text(element: Element) -> dict[str, str]:
    """The trimmed text of the first direct child of each local name: one pass where many are
    wanted.
    """
    return {name(each): (each.text or "").strip() for each in reversed(element)}


def reported(element: Element, *path: str, default: str | None = None) -> str:
    """The text down `path`, trimmed. Raises: Garbled - absent without a default."""
    found = child(element, *path)
    if found is None:
        if default is not None:
            return default
        raise Garbled(f"{'/'.join(path)} is missing: {quote(show(element))}")
    return (found.text or "").strip()


def number(element: Element, *path: str) -> Decimal:
    """The number down `path`, exact. Raises: Garbled."""
    return decimal(reported(element, *path), "/".join(path))


def show(element: Element) -> str:
    return etree.tostring(element, encoding="unicode")


def tree(
    tag: str, *inside: Element | str | tuple[str, str], ns: str = "", **attributes: str
) -> Element:
    """Build an element; a text inside is escaped, a pair is a leaf, an attribute `nc_operation` is
    `operation` of NETCONF.

    >>> show(tree("pair", tree("ingress", "1"), ns="urn:x", nc_operation="merge"))[-48:]
    'nc:operation="merge"><ingress>1</ingress></pair>'
    """
    prefixes: Any = {None: ns, "nc": NC} if ns else None
    space = f"{{{ns}}}" if ns else ""
    made = etree.Element(f"{space}{tag}", nsmap=prefixes)
    for key, value in attributes.items():
        made.set(f"{{{NC}}}{key[3:]}" if key.startswith("nc_") else key.replace("_", "-"), value)
    for each in inside:
        if isinstance(each, str):
            made.text = each
        elif isinstance(each, tuple):
            etree.SubElement(made, f"{space}{each[0]}").text = each[1]
        else:
            made.append(_within(each, space) if ns else each)
    return made


def _within(element: Element, space: str) -> Element:
    """Put an element without a namespace, and what is in it, into one, given as `{URI}`."""
    for each in element.iter("{}*"):
        each.tag = f"{space}{each.tag}"
    return element


def _error(error: Element) -> str:
    """The words of an rpc-error, empty for a warning."""
    if reported(error, "error-severity", default="error") == "warning":
        return ""
    tokens = [
        reported(error, "error-tag", default=""),
        reported(error, "error-app-tag", default=""),
    ]
    tokens += [
        reported(error, "error-message", default=""),
        reported(error, "error-path", default=""),
    ]
    info = child(error, "error-info")
    if info is not None:
        tokens.append(re.sub(r"\s+", " ", "".join(str(part) for part in info.itertext())).strip())
    return (
        ": ".join(printable(word[:200], keep="") for word in tokens if word)
        or "an error without words"
    )
