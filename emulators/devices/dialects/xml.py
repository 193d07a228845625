"""XML as emulated devices read it: no entities, no DTD, no network, nothing deeper than libxml2's
own limit.
"""

from __future__ import annotations

from typing import Any

from lxml import etree

NETCONF = "urn:ietf:params:xml:ns:netconf:base:1.0"


class Malformed(ValueError):
    """Not well-formed, or more than a device reads."""


def read(data: bytes) -> etree._Element:
    """Return the root element. Raises Malformed."""
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(data.strip(), parser)
    except (etree.XMLSyntaxError, ValueError) as problem:
        raise Malformed(str(problem)) from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise Malformed("a document type is not accepted")
    return root


def element(tag: str, spaces: Any = None, attributes: Any = None) -> etree._Element:
    """Return a new element. spaces: prefix (None: the default one) -> namespace; lxml's stubs do
    not know None.
    """
    return etree.Element(tag, attributes, nsmap=spaces)


def namespace(tag: str) -> str:
    return tag[1:].partition("}")[0] if tag.startswith("{") else ""


def local(tag: str) -> str:
    return tag.rpartition("}")[2]


def text(element: etree._Element) -> str:
    return (element.text or "").strip()


def leaf(parent: etree._Element, name: str, value: object) -> etree._Element:
    """Add a leaf in the namespace of `parent`."""
    space = namespace(str(parent.tag))
    child = etree.SubElement(parent, f"{{{space}}}{name}" if space else name)
    child.text = str(value)
    return child
