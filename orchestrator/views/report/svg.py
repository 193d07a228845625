"""Prepare matplotlib's SVG for inclusion in a page: no styles (a strict content policy forbids
them), unique names, and text in the colour of the page, so that one picture serves light and dark
themes."""

from __future__ import annotations

import re
from typing import cast

from lxml import etree

INK = "#0b0c0d"
"""The colour of text and axes in figures; on a page it becomes the colour of the surrounding
text.
"""
_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}"
_NO_XML = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Bytes that XML may not contain; a name that has one is drawn without it."""
_KEPT = re.compile(
    r"fill(-\w+)?|stroke(-\w+)?|opacity|text-anchor|font-(size|weight|style)|clip-path"
)


def inline(drawn: bytes, name: str, title: str) -> str:
    """The picture as one `<svg>` element; `name` is put before every id, `title` is for screen
    readers.
    """
    root = etree.fromstring(
        _NO_XML.sub(b" ", drawn), etree.XMLParser(resolve_entities=False, no_network=True)
    )
    for tag in ("metadata", "style"):
        for element in list(root.iter(f"{_SVG}{tag}")):
            cast("etree._Element", element.getparent()).remove(element)
    for element in root.iter():
        if isinstance(element.tag, str):
            _plain(element, name)
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, "")
    root.set("role", "img")
    root.set("aria-label", title)
    root.set("stroke-linejoin", "round")
    etree.cleanup_namespaces(root)
    return etree.tostring(root, encoding="unicode")


def _plain(element: etree._Element, name: str) -> None:
    style = str(element.attrib.pop("style", ""))
    for part in style.split(";"):
        key, _, value = (word.strip() for word in part.partition(":"))
        if _KEPT.fullmatch(key) and value:
            element.set(key, value)
    if link := element.attrib.pop(f"{_XLINK}href", ""):
        element.set("href", f"#{name}-{str(link).removeprefix('#')}")
    for key, text in [(str(key), str(value)) for key, value in element.attrib.items()]:
        if key == "id":
            element.set(key, f"{name}-{text}")
        elif text.startswith("url(#"):
            element.set(key, f"url(#{name}-{text.removeprefix('url(#')}")
        elif text.lower() == INK:
            element.set(key, "currentColor")
