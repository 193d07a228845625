"""Which commands turn a connection table into the wanted one, without a device."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from drivers.wire.calient_rows import Connection, Pair, make, natural, parse, work

GROUP = "TESTBED"
REAL = "2.8.5>2.3.3:SRCPORT=2.8.5,DSTPORT=2.3.3,GRPNAME=DSTRAUB,CONNNAME=2.8.5>2.3.3,CONNTYPE=1WAY,AS=UMA,OS=RDY,OC=FAIL,PS=UPR,AL=CL"


def row(
    a: str, b: str, bidirectional: bool = False, group: str = GROUP, state: str = "IS"
) -> Connection:
    oper = "IS" if state == "IS" else "RDY"
    return replace(make(a, b, bidirectional, group), admin=state, oper=oper, condition="OK")


def pairs(*texts: str) -> frozenset[Pair]:
    return frozenset((a, b) for a, _, b in (text.partition(">") for text in texts))


def named(connections: tuple[Connection, ...]) -> list[str]:
    return [connection.name for connection in connections]


def test_a_captured_row_is_reserved_and_carries_nothing() -> None:
    found = parse(REAL)
    assert (found.source, found.destination, found.kind, found.group) == (
        "2.8.5",
        "2.3.3",
        "1WAY",
        "DSTRAUB",
    )
    assert not found.engaged and not found.active and not found.healthy


def test_two_directions_between_two_ports_become_one_connection() -> None:
    todo = work([], frozenset(), pairs("1.1.2>1.1.1", "1.1.1>1.1.2", "1.1.3>1.1.4"), GROUP)
    assert named(todo.enter) == ["1.1.1-1.1.2", "1.1.3>1.1.4"]
    assert todo.activate == todo.enter


def test_a_loop_back_is_one_way() -> None:
    assert named(work([], frozenset(), pairs("1.1.1>1.1.1"), GROUP).enter) == ["1.1.1>1.1.1"]


def test_what_stands_is_left_alone() -> None:
    assert not work(
        [row("1.1.1", "1.1.2", True)], frozenset(), pairs("1.1.1>1.1.2", "1.1.2>1.1.1"), GROUP
    )


def test_a_circuit_under_way_is_not_made_again() -> None:
    moving = replace(row("1.1.1", "1.1.2"), oper="RDY")
    assert not work([moving], frozenset(), pairs("1.1.1>1.1.2"), GROUP)


def test_a_cancelled_connection_is_only_deleted() -> None:
    todo = work([row("1.1.1", "1.1.2", state="UMA")], pairs("1.1.1>1.1.2"), frozenset(), GROUP)
    assert (named(todo.cancel), named(todo.delete)) == ([], ["1.1.1>1.1.2"])


def test_half_of_a_two_way_connection_is_made_again() -> None:
    todo = work([row("1.1.1", "1.1.2", True)], pairs("1.1.1>1.1.2"), pairs("1.1.1>1.1.3"), GROUP)
    assert named(todo.cancel) == named(todo.delete) == ["1.1.1-1.1.2"]
    assert sorted(named(todo.enter)) == ["1.1.1>1.1.3", "1.1.2>1.1.1"]


def test_our_leftover_in_the_way_is_deleted_and_one_aside_is_kept() -> None:
    rows = [row("1.1.1", "1.1.2", state="UMA"), row("1.2.1", "1.2.2", state="UMA")]
    assert named(work(rows, frozenset(), pairs("1.1.1>1.1.3"), GROUP).delete) == ["1.1.1>1.1.2"]


def test_a_foreign_reservation_refuses_the_circuit_and_names_its_holder() -> None:
    todo = work(
        [row("1.1.1", "1.1.2", group="LABX", state="UMA")], frozenset(), pairs("1.1.3>1.1.2"), GROUP
    )
    assert not todo
    assert todo.refused == {
        (
            "1.1.3",
            "1.1.2",
        ): "port 1.1.2 is held by 1.1.1->1.1.2, connection '1.1.1>1.1.2' of group 'LABX' (AS=UMA,OS=RDY,OC=OK)"
    }


def test_ports_sort_as_people_count() -> None:
    assert sorted(["1.10.1", "1.2.1", "0.7b.6", "1.2.10"], key=natural) == [
        "0.7b.6",
        "1.2.1",
        "1.2.10",
        "1.10.1",
    ]


ports = st.integers(1, 6).map(lambda n: f"1.1.{n}")


@st.composite
def tables(draw: st.DrawFn) -> list[Connection]:
    """A legal table: no side of a port is used twice."""
    entering: set[str] = set()
    leaving: set[str] = set()
    rows: list[Connection] = []
    for a, b, bidirectional, group, state in draw(
        st.lists(
            st.tuples(
                ports,
                ports,
                st.booleans(),
                st.sampled_from([GROUP, "LABX"]),
                st.sampled_from(["IS", "UMA"]),
            ),
            max_size=6,
        )
    ):
        found = row(a, b, bidirectional and a != b, group, state)
        ins, outs = {x for x, _ in found.pairs}, {y for _, y in found.pairs}
        if not ins & entering and not outs & leaving:
            entering |= ins
            leaving |= outs
            rows.append(found)
    return rows


@settings(max_examples=200, deadline=None)
@given(tables(), st.permutations([f"1.1.{n}" for n in range(1, 7)]), st.integers(0, 6), st.data())
def test_the_work_leads_to_the_wanted_table_and_touches_nothing_else(
    rows: list[Connection], outs: list[str], count: int, data: st.DataObject
) -> None:
    active = sorted(pair for r in rows if r.active for pair in r.pairs)
    remove = frozenset(data.draw(st.sets(st.sampled_from(active)) if active else st.just(set())))
    add = frozenset((f"1.1.{n + 1}", outs[n]) for n in range(count)) - remove
    todo = work(rows, remove, add, GROUP)
    table = [r for r in rows if r not in todo.delete]
    for r in todo.delete:
        assert r.group == GROUP or r.pairs & remove, "somebody else's connection was deleted"
        assert not r.engaged or r in todo.cancel
    assert set(todo.cancel) <= set(todo.delete)
    assert set(todo.enter) <= set(todo.activate)
    table += todo.enter
    used = [side for r in table for a, b in r.pairs for side in (("in", a), ("out", b))]
    clashes = {
        pair
        for pair in add
        for other in add
        if pair != other and (pair[0] == other[0] or pair[1] == other[1])
    }
    assert clashes or len(used) == len(set(used)), "a side of a port is used twice"
    lit = {pair for r in table if r.engaged or r in todo.activate for pair in r.pairs}
    kept = {pair for r in rows if r.active for pair in r.pairs} - remove
    assert kept - todo.refused.keys() <= lit, "a circuit that was to stay is gone"
    assert add - todo.refused.keys() <= lit
    assert not remove & lit
