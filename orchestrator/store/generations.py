"""Generations: the numbers of sets of host routes on a lab, and who owns each."""

from __future__ import annotations

from orchestrator.store.database import Database, next_number
from orchestrator.store.records import Belonging


def next_generation(store: Database, lab: str, owner: str = "", run: str = "") -> int:
    """Return a new number for a set of host routes, unique on this lab, from 1; record it as the
    owner's.
    """
    with store.transaction() as db:
        number = next_number(db, "generations", lab)
        db.execute("INSERT INTO generation_owners VALUES(?,?,?,?)", (lab, number, owner, run))
    return number


def generation_owners(store: Database, lab: str) -> dict[int, Belonging]:
    """The owner of every generation that this store issued for the lab."""
    rows = store.read(
        "SELECT g.*, coalesce(runs.plan_name, '') AS plan_name FROM generation_owners g LEFT JOIN runs ON runs.id=g.run"
        " WHERE g.lab=?",
        (lab,),
    )
    return {
        row["generation"]: Belonging(row["owner"], row["run"], row["plan_name"]) for row in rows
    }


def hand_over(store: Database, lab: str, owner: str, to: str) -> None:
    """Transfer an owner's generations to another owner, who may then change the hosts that run
    them.
    """
    store.write("UPDATE generation_owners SET owner=? WHERE lab=? AND owner=?", (to, lab, owner))
