"""`Hosts` is made of parts: what is asked of hosts is a method of one of them, and not of
`Hosts`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from tests.house.repository import ROOT

MOST, MOST_OF_A_PART = 15, 25
ROOM = ROOT / "orchestrator" / "hosts"


def classes(sources: Sequence[str]) -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for text in sources
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    }


def members(name: str, known: Mapping[str, ast.ClassDef]) -> set[str]:
    """The public methods, properties and attributes of a class, those of its bases among `known`
    too.
    """
    found: set[str] = set()
    for each in known[name].body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {each.name} | {
                node.attr
                for node in ast.walk(each)
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            }
        for target in (
            each.targets
            if isinstance(each, ast.Assign)
            else [each.target]
            if isinstance(each, ast.AnnAssign)
            else []
        ):
            found |= {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    for base in known[name].bases:
        if isinstance(base, ast.Name) and base.id in known:
            found |= members(base.id, known)
    return {member for member in found if not member.startswith("_")}


def test_hosts_and_its_parts_stay_small() -> None:
    known = classes([path.read_text() for path in sorted(ROOM.glob("*.py"))])
    (made,) = (
        each
        for each in known["Hosts"].body
        if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    )
    parts = {
        node.value.func.id
        for node in made.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
    }
    assert {
        "Channels",
        "Plays",
        "HostRoutes",
        "HostJobs",
        "Measurements",
        "RingChanges",
        "HostSlots",
    } <= parts
    assert len(found := members("Hosts", known)) <= MOST, sorted(found)
    for part in parts:
        assert len(found := members(part, known)) <= MOST_OF_A_PART, (part, sorted(found))


def test_members_are_counted_with_those_of_bases() -> None:
    source = """
class Base:
    def ask(self): self.asked = self._n = 1
class Made(Base):
    token: int = 0
    first, _second = 1, 2
    @property
    def up(self): ...
    async def _own(self): self.late, other.gone = 1, 2
"""
    assert members("Made", classes([source])) == {"ask", "asked", "token", "first", "up", "late"}
