"""Hosts listen to the newest run they have heard of; taking them back from one whose number is of another store or a wrong clock.

A run's token is the number after the lab's last one in the store, or the wall time in seconds if that is more: runs of a new store
are newer than those of a lost one. A clock that was ahead for one run leaves hosts that take every run of a new store for older.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from optics import HostName, Unreachable
from orchestrator.engine.change.locking import holding
from orchestrator.hosts import Hello
from orchestrator.results import JsonReport
from orchestrator.session import Command, load_lab
from orchestrator.store.audit import add_audit
from orchestrator.store.keys import key_of
from orchestrator.store.locks import next_token, who
from orchestrator.store.scope import WHOLE


@dataclass(frozen=True, slots=True)
class TakenReport(JsonReport):
    """hosts: those that would have refused the next run, and the token each knew. token: what the next run's will be higher than.

    silent: hosts that could not be asked, in their own words.
    """

    lab: str
    hosts: Mapping[HostName, int]
    token: int
    silent: Mapping[HostName, str]


async def take_hosts(command: Command, reason: str) -> TakenReport:
    """Make the next run of this store newer than any that the hosts know; nothing is changed on a host.

    Raises: Locked - a run of this store works now. Unreachable - no host answers.
    """
    lab, store = load_lab(command.inventory), command.store
    key = key_of(lab)
    async with (
        command.opened(lab, "unlock") as session,
        holding(lab, command, WHOLE, "unlock --hosts"),
    ):
        answers = await session.hosts.connect()
        silent = {name: str(answer) for name, answer in answers.items() if not isinstance(answer, Hello)}
        known = {name: answer.token for name, answer in answers.items() if isinstance(answer, Hello) and answer.installed}
        if not known:
            raise Unreachable("\n".join(silent.values()) or "no host has a committer that answers", hint="testbed doctor")
        upcoming = next_token(store, key)
        ahead = {name: token for name, token in known.items() if token > upcoming}
        if ahead:
            with store.transaction() as db:
                db.execute("INSERT OR REPLACE INTO tokens VALUES(?,?)", (key, max(ahead.values())))
                words = f"{len(ahead)} hosts, up to token {max(ahead.values())}: {reason}"
                add_audit(db, key, who(command.settings), time.time(), "hosts taken", "", words)
    return TakenReport(lab.name, ahead, max([upcoming - 1, *ahead.values()]), silent)
