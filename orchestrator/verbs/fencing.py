"""Hosts obey only the newest run they know. Recover hosts whose run number comes from another store
or a wrong clock.

A run's token is the number after the lab's last one in the store, or the wall time in seconds if
that is larger, so that runs of a new store are newer than those of a lost one. If the clock was
ahead for one run, hosts treat every run of a new store as older.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from optics import HostName, Unreachable
from orchestrator.change.locking import holding
from orchestrator.hosts import Hello
from orchestrator.results import JsonReport
from orchestrator.session import Command, load_lab
from orchestrator.store.audit import add_audit
from orchestrator.store.keys import key_of
from orchestrator.store.locks import next_token, who
from orchestrator.store.scope import WHOLE


@dataclass(frozen=True, slots=True)
class TakenReport(JsonReport):
    """hosts: those that would have refused the next run, and the token each knew. token: the next
    run's token will be higher.

    silent: hosts that could not be asked, with their errors.
    """

    lab: str
    hosts: Mapping[HostName, int]
    token: int
    silent: Mapping[HostName, str]


async def take_hosts(command: Command, reason: str) -> TakenReport:
    """Make the next run of this store newer than any that the hosts know; nothing changes on a
    host.

    Raises: Locked - a run of this store is active. Unreachable - no host answers.
    """
    lab, store = load_lab(command.inventory), command.store
    key = key_of(lab)
    async with (
        command.opened(lab, "unlock") as session,
        holding(lab, command, WHOLE, "lock release --hosts"),
    ):
        answers = await session.hosts.channels.connect()
        silent = {
            name: str(answer) for name, answer in answers.items() if not isinstance(answer, Hello)
        }
        known = {
            name: answer.token
            for name, answer in answers.items()
            if isinstance(answer, Hello) and answer.installed
        }
        if not known:
            raise Unreachable(
                "\n".join(silent.values()) or "no host has an agent that answers",
                hint="testbed doctor",
            )
        upcoming = next_token(store, key)
        ahead = {name: token for name, token in known.items() if token > upcoming}
        if ahead:
            with store.transaction() as db:
                db.execute("INSERT OR REPLACE INTO tokens VALUES(?,?)", (key, max(ahead.values())))
                text = f"{len(ahead)} hosts, up to token {max(ahead.values())}: {reason}"
                add_audit(db, key, who(command.settings), time.time(), "hosts taken", "", text)
    return TakenReport(lab.name, ahead, max([upcoming - 1, *ahead.values()]), silent)
