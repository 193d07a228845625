"""What people say of runs: notes, and tags by which `run list` finds them again."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from optics.errors import Missing, Usage
from optics.plain import counted
from orchestrator.store.database import Database

MOST_TEXT = 4000
"""Characters of one note."""
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")


@dataclass(frozen=True, slots=True)
class Note:
    """One note. number: of the note in the store. at: wall seconds."""

    number: int
    run: str
    at: float
    user: str
    text: str


def check_tag(tag: str) -> str:
    """The tag. Raises: Usage - it is none."""
    if not _TAG.fullmatch(tag):
        raise Usage(
            f"tag {tag[:80]!r}: letters, digits and . _ : - (the first a letter or a digit), at most 64 characters"
        )
    return tag


def check_text(text: str) -> str:
    """The text of a note, without space around it. Raises: Usage - it is empty, too long or no
    text.
    """
    text = text.strip()
    try:
        text.encode()
    except UnicodeEncodeError:  # of a terminal with another encoding
        raise Usage("the note is not UTF-8") from None
    if not text or len(text) > MOST_TEXT:
        raise Usage(f"a note has 1 to {MOST_TEXT} characters, not {len(text)}")
    return text


def annotate(
    store: Database,
    runs: Iterable[str],
    user: str,
    *,
    text: str = "",
    tags: Collection[str] = (),
    untag: Collection[str] = (),
    drop: Collection[int] = (),
) -> None:
    """Add a note and tags to runs, and remove tags and notes (by number); all of it or nothing.

    Raises: Usage - a tag or the text is none. Missing - a run is not in the store, or has no note
    of such a number.
    """
    tags, untag = [check_tag(tag) for tag in tags], [check_tag(tag) for tag in untag]
    text = check_text(text) if text else ""
    with store.transaction() as db:
        left = set(drop)
        for run in runs:
            if db.execute("SELECT 1 FROM runs WHERE id=?", (run,)).fetchone() is None:
                raise Missing(f"there is no run {run!r}", hint="testbed run list")
            if text:
                db.execute(
                    "INSERT INTO notes(run,at,user,text) VALUES(?,?,?,?)",
                    (run, time.time(), user, text),
                )
            db.executemany(
                "INSERT OR IGNORE INTO tags(run,tag,at,user) VALUES(?,?,?,?)",
                [(run, t, time.time(), user) for t in tags],
            )
            db.executemany("DELETE FROM tags WHERE run=? AND tag=?", [(run, tag) for tag in untag])
            left -= {
                n
                for n in drop
                if db.execute("DELETE FROM notes WHERE run=? AND number=?", (run, n)).rowcount
            }
        if left:
            message = f"no {counted(len(left), 'note').partition(' ')[2]} {', '.join(map(str, sorted(left)))} of the given runs"
            raise Missing(message, hint="testbed run note RUN lists them with their numbers")


def notes_of(store: Database, runs: Collection[str]) -> dict[str, list[Note]]:
    """The notes of these runs, oldest first."""
    found: dict[str, list[Note]] = {run: [] for run in runs}
    for row in store.read("SELECT number, run, at, user, text FROM notes ORDER BY number"):
        if row["run"] in found:
            found[row["run"]].append(Note(**dict(row)))
    return found


def tags_of(store: Database, runs: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The tags of these runs, by name."""
    found: dict[str, list[str]] = {run: [] for run in runs}
    for row in store.read("SELECT run, tag FROM tags ORDER BY tag"):
        if row["run"] in found:
            found[row["run"]].append(row["tag"])
    return {run: tuple(tags) for run, tags in found.items()}


def runs_with_tags(store: Database, tags: Collection[str]) -> frozenset[str]:
    """The runs that have all of these tags, of which there is one at least."""
    one, *others = (
        frozenset(row["run"] for row in store.read("SELECT run FROM tags WHERE tag=?", (tag,)))
        for tag in tags
    )
    return one.intersection(*others)


def all_tags(store: Database) -> Mapping[str, int]:
    """Every tag, with its number of runs."""
    return {
        row["tag"]: row["n"]
        for row in store.read("SELECT tag, count(*) AS n FROM tags GROUP BY tag ORDER BY tag")
    }
