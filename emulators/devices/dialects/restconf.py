"""RESTCONF (RFC 8040) bodies and errors, in JSON (RFC 7951) and XML: what every server of it writes
and reads alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lxml import etree

from emulators.devices.dialects.http import Request, Response
from emulators.devices.dialects.xml import Malformed, element, local, read, text

JSON, XML = "application/yang-data+json", "application/yang-data+xml"
ERRORS = "urn:ietf:params:xml:ns:yang:ietf-restconf"
STATUS = {  # RFC 8040 section 7
    "in-use": 409, "invalid-value": 400, "too-big": 413, "missing-attribute": 400, "bad-attribute": 400, "unknown-attribute": 400,
    "missing-element": 400, "bad-element": 400, "unknown-element": 400, "unknown-namespace": 400, "access-denied": 403,
    "lock-denied": 409, "resource-denied": 409, "rollback-failed": 500, "data-exists": 409, "data-missing": 409,
    "operation-not-supported": 405, "operation-failed": 500, "partial-operation": 500, "malformed-message": 400,
}  # fmt: skip

Body = Mapping[str, Any]


def wants_xml(request: Request) -> bool:
    """What Accept says, else the type of the body, else XML: public scripts without Accept read XML
    (CODE).
    """
    accept = request.headers.get("accept", "")
    for message in (accept, request.headers.get("content-type", "")):
        if "json" in message:
            return False
        if (
            "yang-data+xml" in message
            or message.startswith("application/xml")
            or message.startswith("text/xml")
        ):
            return True
    return True


def body(request: Request) -> tuple[str, Any]:
    """Return the name of the one node a request brings, without its module, and its content. Raises
    ValueError.

    Content: dict, list or text; XML has no lists, so a child that occurs once is a dict or text all
    the same.
    """
    if request.body.lstrip()[:1] == b"<":  # some clients name no type (CODE: pqnstack)
        try:
            root = read(request.body)
        except Malformed as problem:
            raise ValueError(str(problem)) from None
        return local(str(root.tag)), _content(root)
    given = request.json()
    if not isinstance(given, dict) or len(given) != 1:
        raise ValueError("one node is wanted")
    name, content = next(iter(given.items()))
    return name.rpartition(":")[2], _bare(content)


def _content(root: etree._Element) -> Any:
    if not len(root):
        return text(root)
    found: dict[str, Any] = {}
    for child in root:
        name, value = local(str(child.tag)), _content(child)
        if name in found:
            before = found[name]
            found[name] = [*before, value] if isinstance(before, list) else [before, value]
        else:
            found[name] = value
    return found


def _bare(content: Any) -> Any:
    if isinstance(content, dict):
        return {name.rpartition(":")[2]: _bare(value) for name, value in content.items()}
    return [_bare(item) for item in content] if isinstance(content, list) else content


def answer(
    request: Request, module: str, space: str, name: str, content: Any, headers: Mapping[str, str]
) -> Response:
    """Return a 200 with one node; a list of dicts under `name` is written as that many elements."""
    if wants_xml(request):
        nodes = content if isinstance(content, list) else [content]
        return Response(200, b"".join(_xml(name, node, space) for node in nodes), XML, headers)
    return Response(200, json.dumps({f"{module}:{name}": content}).encode(), JSON, headers)


def _xml(name: str, content: Any, space: str) -> bytes:
    root = element(f"{{{space}}}{name}", {None: space})
    _fill(root, content, space)
    made: bytes = etree.tostring(root)
    return made


def _fill(parent: etree._Element, content: Any, space: str) -> None:
    if not isinstance(content, dict):
        # XML has no word for the others
        parent.text = "".join(each if each.isprintable() else " " for each in str(content))
        return
    for name, value in content.items():
        for item in value if isinstance(value, list) else [value]:
            _fill(etree.SubElement(parent, f"{{{space}}}{name}"), item, space)


def failure(
    request: Request | None, status: int, tag: str, message: str, app_tag: str = "", path: str = ""
) -> Response:
    """Return an errors resource (RFC 8040 7.1)."""
    reply = {
        "error-type": "protocol" if status in (400, 404, 405, 412, 413) else "application",
        "error-tag": tag,
    }
    reply |= {
        name: value
        for name, value in (
            ("error-app-tag", app_tag),
            ("error-path", path),
            ("error-message", message),
        )
        if value
    }
    if request is not None and wants_xml(request):
        return Response(status, _xml("errors", {"error": reply}, ERRORS), XML)
    return Response(status, json.dumps({"ietf-restconf:errors": {"error": [reply]}}).encode(), JSON)


def rows(content: Any) -> Sequence[Mapping[str, Any]]:
    """Return the entries of a list, however it was written. Raises ValueError."""
    listed = content if isinstance(content, list) else [] if content in (None, "") else [content]
    if not all(isinstance(row, dict) for row in listed):
        raise ValueError("an entry of a list has members")
    return listed
