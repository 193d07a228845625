"""Two owners, random plans, faults and crashes: a Hypothesis state machine over the bench; the devices and hosts are the judges.

After every command: no port was driven for two circuits; circuits of the other owner, and of no owner this store knows, were not
touched (their connected-since stamps); what the store says is owned explains every circuit there is; and what the next `status`
says, for either owner, is so.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from emulators.faults import COMMAND_FAULTS
from optics import HandsNeeded, Interrupted, RolledBack, TestbedError
from orchestrator.engine import verbs as engine
from orchestrator.store.locks import locks_of, who
from orchestrator.store.scope import Scope
from orchestrator.store.tagouts import Tagouts
from tests.drills.bench import BOOT_S, Bench, Killed, Pair, Process, labels, opened, plan_text
from tests.drills.fault_matrix import SECONDS

HOSTS, PORTS = 5, 4
OWNERS = ("ann", "bob")
KINDS = sorted(set(COMMAND_FAULTS) - {"clock-step"})
SPARE = range(11, 15)
"""Ports without a fibre, where somebody's hands make circuits that are in nobody's way."""

owners = st.sampled_from(OWNERS)
seeds = st.integers(0, 2**20)


@dataclass(frozen=True)
class Trouble:
    """What happens to a command: nothing, a fault of a device, a host's request that fails, a kill or a Ctrl-C at a point."""

    what: str
    number: int = 0
    kind: str = ""
    device: str = ""


troubles = st.one_of(
    st.just(Trouble("nothing")),
    st.just(Trouble("nothing")),
    st.builds(
        Trouble,
        st.sampled_from(("write", "read")),
        st.integers(0, 10),
        st.sampled_from(KINDS),
        st.sampled_from(("ocs1", "ocs2")),
    ),
    st.builds(Trouble, st.sampled_from(("refused", "lost")), st.integers(1, 8)),
    st.builds(Trouble, st.just("kill"), st.integers(1, 110)),
    st.builds(Trouble, st.just("cancel"), st.integers(1, 110)),
)

STEPS: Counter[str] = Counter()
ENDS: Counter[str] = Counter()


class TwoOwners(RuleBasedStateMachine):
    """The lab, what hands did to it, and the commands of two owners."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stack = AsyncExitStack()
        self.made = tempfile.TemporaryDirectory(prefix="testbed-drill-")
        self.bench: Bench = self.do(self.stack.enter_async_context(opened(Path(self.made.name), hosts=HOSTS, ports=PORTS)))
        self.foreign = {name: {self.bench.foreign(name)} for name in self.bench.servers}
        self.reboots: Counter[str] = Counter()
        self.tags: list[tuple[str, str]] = []
        self.reserved: list[tuple[str, str]] = []
        for name, server in self.bench.servers.items():
            self._count_reboots(name, server.dialect)

    def _count_reboots(self, name: str, dialect: Any) -> None:
        reboot = dialect.reboot

        def counted(keep: bool, now: float) -> None:
            self.reboots[name] += 1
            reboot(keep, now)

        dialect.reboot = counted

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.do(self.stack.aclose())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        self.made.cleanup()

    # --- what is known

    def owned(self, owner: str) -> dict[str, set[Pair]]:
        with self.bench.store(owner) as store:
            found: dict[str, set[Pair]] = {name: set() for name in self.bench.servers}
            for s in store.owned(self.bench.slice(owner)):
                found[s.ingress.device].add((s.ingress.label, s.egress.label))
        return found

    def unfinished(self) -> bool:
        with self.bench.store() as store:
            return any(store.unfinished(self.bench.key, name) for name in OWNERS)

    def stamps(self) -> dict[tuple[str, Pair], float | None]:
        return {
            (name, pair): server.plant.since(pair) for name, server in self.bench.servers.items() for pair in server.plant.pairs()
        }

    def plan(self, seed: int, owner: str) -> list[tuple[str, str]]:
        """One to four links; each owner mostly keeps to hosts of his own, and sometimes does not."""
        draw = random.Random(seed)
        mine = (1, 2, 3) if owner == "ann" else (3, 4, 5)
        hosts = mine if draw.random() < 0.6 else range(1, HOSTS + 1)
        free = [(h, p) for h in hosts for p in range(1, PORTS + 1)]
        draw.shuffle(free)
        links = []
        for _ in range(draw.randint(1, 4)):
            pairs = [(a, b) for a in free for b in free if a[0] < b[0] and (a[1] - b[1]) % 2 == 0]
            if not pairs:
                break
            a, b = draw.choice(pairs)
            free = [end for end in free if end not in (a, b)]
            links.append((f"gpu{a[0]:02d}:p{a[1]}", f"gpu{b[0]:02d}:p{b[1]}"))
        return links

    # --- commands

    def command(self, verb: Any, *words: Any, owner: str, trouble: Trouble, adopting: tuple[str, ...] = (), **more: Any) -> Any:
        """Run a verb in trouble; look at everything afterwards. Returns what it returned or raised."""
        bench = self.bench
        before, was_held, was_routes, was_reboots = self.stamps(), bench.held(), bench.routes(), Counter(self.reboots)
        mine = self.owned(owner)
        process = self._trouble(trouble)
        try:
            came: Any = self.do(self._cancellable(verb, *words, owner=owner, process=process, trouble=trouble, **more))
        except (TestbedError, Killed) as error:
            came = error
        finally:
            bench.requests.fail = {}
            for server in bench.servers.values():
                for armed in server.list_faults():
                    server.remove_fault(int(str(armed["id"])))
        self.do(asyncio.sleep(2 * BOOT_S if self.reboots != was_reboots else 0.01))
        end = type(came).__name__ if isinstance(came, BaseException) else "success"
        STEPS[verb.__name__] += 1
        ENDS[end] += 1
        words_ = f"{owner} {verb.__name__} in {trouble} ended with {end}: {came}"
        rebooted = {name for name in bench.servers if self.reboots[name] != was_reboots[name]}
        self.untouched(before, mine, adopting, rebooted, words_)
        quiet = (RolledBack, Interrupted) if "as before" in str(came) else (RolledBack,)
        if isinstance(came, quiet) or (isinstance(came, TestbedError) and not isinstance(came, (HandsNeeded, Interrupted))):
            self.as_before(was_held, was_routes, rebooted if not isinstance(came, RolledBack) else set(), verb, words_)
        self.look(words_, died=isinstance(came, Killed), owner=owner)
        return came

    async def _cancellable(self, verb: Any, *words: Any, process: Process, trouble: Trouble, **more: Any) -> Any:
        task = asyncio.ensure_future(self.bench.verb(verb, *words, process=process, **more))
        if trouble.what == "cancel":

            def act(name: str) -> None:
                if len(process.points) == trouble.number:
                    task.cancel()

            process.act = act
        try:
            async with asyncio.timeout(60):
                return await task
        except asyncio.CancelledError:  # before the verb had begun anything it could speak of
            return None

    def _trouble(self, trouble: Trouble) -> Process:
        bench = self.bench
        bench.requests.names.clear()
        match trouble.what:
            case "refused" | "lost":
                bench.requests.fail = {trouble.number: trouble.what}
            case "write" | "read":
                seconds = {"seconds": SECONDS[trouble.kind]} if trouble.kind in SECONDS else {}
                server = bench.servers[trouble.device]
                server.add_fault(trouble.kind, on=trouble.what, after=trouble.number, count=1, **seconds)
        return Process("", kill_at=trouble.number if trouble.what == "kill" else 0)

    # --- invariants

    def untouched(self, before: Any, mine: Any, adopting: tuple[str, ...], rebooted: set[str], words: str) -> None:
        now = self.stamps()
        for (device, pair), since in before.items():
            name = f"{device}:{pair[0]}->{pair[1]}"
            if pair in mine[device] or name in adopting or device in rebooted:
                continue
            assert now.get((device, pair)) == since, f"{name} is not {words.split()[0]}'s and was touched; {words}"

    def as_before(self, held: Any, routes: Any, lost: set[str], verb: Any, words: str) -> None:
        if verb in (engine.down, engine.rollback, engine.restore, engine.resume):
            return  # these say what is left; `look` sees whether it is so
        now = self.bench.held()
        for device, pairs in held.items():
            assert device in lost or now[device] == pairs, f"{device}: {pairs ^ now[device]} differ; {words}"
        assert self.bench.routes() == routes, f"routes differ; {words}"

    def look(self, words: str, *, died: bool, owner: str) -> None:
        """Everything that must hold after any command, and what `status` says of it."""
        bench = self.bench
        assert not bench.violations(), f"{bench.violations()}; {words}"
        held, own = bench.held(), {name: self.owned(name) for name in OWNERS}
        for device, pairs in held.items():
            self.foreign[device] &= pairs
            known = self.foreign[device].union(*(own[name][device] for name in OWNERS))
            assert pairs <= known, f"{device}: nobody knows of {pairs - known}; {words}"
            both = own["ann"][device] & own["bob"][device]
            assert not both, f"{device}: {both} belongs to both; {words}"
        assert not bench.locked() or self.reserved, f"locked: {bench.locked()}; {words}"
        for name in OWNERS:
            self.true(self.do(bench.status(name)), name, own[name], words)
        if died:
            with bench.store() as store:
                run = store.get("last")
            if run is not None and run.status == "died":
                status = self.do(bench.status(owner))
                assert run.owner != owner or run.id in [u.run for u in status.unfinished], f"status names no died run; {words}"

    def true(self, status: Any, owner: str, own: Any, words: str) -> None:
        bench, held = self.bench, self.bench.held()
        with bench.store(owner) as store:
            current = store.current(bench.slice(owner))
        links = [(link["a"], link["b"]) for link in json.loads(current.plan_text)["links"]] if current else []
        goal = {name: pairs - {bench.foreign(name)} for name, pairs in bench.wanted(links).items()}
        for device in status.devices:
            name = device.name
            assert device.ok, f"status: {device.error}; {words}"
            assert device.ours == len(own[name] & held[name]), f"status of {owner}: {device}; {words}"
            foreign = {f"{a}->{b}" for a, b in held[name] - own[name] - goal[name]}
            assert _names(device.foreign) == foreign, f"status of {owner}: foreign {device.foreign}, are {foreign}; {words}"
            missing = {f"{a}->{b}" for a, b in goal[name] - held[name]}
            assert _names(device.missing) == missing, f"status of {owner}: missing {device.missing}, are {missing}; {words}"
        for host in status.hosts:
            assert host.generation == bench.fleet.all[host.name].active, f"status of {owner}: {host}; {words}"

    # --- rules

    @initialize()
    def begin(self) -> None:
        self.look("the beginning", died=False, owner="ann")

    @rule(owner=owners, seed=seeds, trouble=troubles, then=st.sampled_from(("", "resume", "rollback")))
    def up(self, owner: str, seed: int, trouble: Trouble, then: str) -> None:
        """Bring a plan up; one that was killed on its way goes on, goes back, or is left to whoever comes next."""
        links = self.plan(seed, owner)
        path = self.bench.folder / f"{owner}.json"
        path.write_text(plan_text(f"plan-{seed}", links))
        was, reboots = self.bench.held(), Counter(self.reboots)
        came = self.command(engine.up, path, owner=owner, trouble=trouble, dry_run=False, launch_job=False)
        if isinstance(came, Killed) and then:
            with self.bench.store(owner) as store:
                run = store.get("last")
            if run is None or run.status != "died" or not run.begun or run.owner != owner:
                return
            verb = engine.resume if then == "resume" else engine.rollback
            came = self.command(verb, run.id, owner=owner, trouble=Trouble("nothing"))
            if then == "rollback":
                good = not isinstance(came, BaseException) and not getattr(came, "left", ()) and self.reboots == reboots
                assert not good or self.bench.held() == was, f"rolled back to {self.bench.held()}, it was {was}"
                return
        if came is not None and not isinstance(came, BaseException):
            wanted = {name: pairs - {self.bench.foreign(name)} for name, pairs in self.bench.wanted(links).items()}
            assert self.owned(owner) == wanted, f"up succeeded and {owner} owns {self.owned(owner)}, not {wanted}"
            held = self.bench.held()
            assert all(pairs <= held[name] for name, pairs in wanted.items()), "up succeeded and not everything is there"
            assert not self.bench.dark(links), f"up succeeded, dark are {self.bench.dark(links)}"

    @rule(owner=owners, trouble=troubles)
    def down(self, owner: str, trouble: Trouble) -> None:
        came = self.command(engine.down, owner=owner, trouble=trouble)
        if came is not None and not isinstance(came, BaseException) and not came.left:
            assert not any(self.owned(owner).values()), f"down left nothing, and {owner} owns {self.owned(owner)}"

    @rule(owner=owners, seed=seeds, number=st.integers(1, 110), then=st.sampled_from(("resume", "rollback")))
    def killed(self, owner: str, seed: int, number: int, then: str) -> None:
        """The same, killed at some point."""
        self.up(owner, seed, Trouble("kill", number), then)

    @rule(owner=owners, trouble=troubles)
    def rollback(self, owner: str, trouble: Trouble) -> None:
        with self.bench.store(owner) as store:
            begun = any(run.begun and run.owner == owner for run in store.history(self.bench.key, 0))
        if begun:
            self.command(engine.rollback, None, owner=owner, trouble=trouble)

    @rule(owner=owners, trouble=troubles)
    def restore(self, owner: str, trouble: Trouble) -> None:
        with self.bench.store(owner) as store:
            current = store.current(self.bench.slice(owner))
        if current is not None:
            self.command(engine.restore, owner=owner, trouble=trouble)

    @precondition(lambda self: self.unfinished())
    @rule(owner=owners, trouble=troubles, undo=st.booleans())
    def put_right(self, owner: str, trouble: Trouble, undo: bool) -> None:
        """Resume or take back what stopped on its way, of this owner or else of the other."""
        for name in (owner, *OWNERS):
            with self.bench.store(name) as store:
                runs = [run for run in store.unfinished(self.bench.key, name) if run.begun or not undo]
            if runs:
                adopting = tuple(map(str, runs[0].options.get("adopt") or ()))  # type: ignore[arg-type]
                verb = engine.rollback if undo else engine.resume
                self.command(verb, runs[0].id, owner=name, trouble=trouble, adopting=adopting)
                return

    @rule(owner=owners, seed=seeds, trouble=troubles)
    def adopt(self, owner: str, seed: int, trouble: Trouble) -> None:
        """Bring a plan up and make a circuit ours that is not."""
        draw, own = random.Random(seed), self.owned(owner)
        there = [f"{d}:{a}->{b}" for d, pairs in self.bench.held().items() for a, b in sorted(pairs - own[d])]
        path = self.bench.folder / f"{owner}.json"
        path.write_text(plan_text(f"plan-{seed}", self.plan(seed, owner)))
        names = (draw.choice(there),) if there else ()
        turned = [re.sub(r":(.*)->(.*)", r":\2->\1", name) for name in names]
        names += tuple(name for name in turned if name in there and draw.random() < 0.8)
        self.command(engine.up, path, owner=owner, trouble=trouble, adopting=names, adopt=names, dry_run=False, launch_job=False)

    @rule(seed=seeds)
    def hands_make(self, seed: int) -> None:
        """Somebody makes a circuit with means of his own, on ports without a fibre or on any."""
        STEPS["hands"] += 1
        draw = random.Random(seed)
        device = draw.choice(sorted(self.bench.servers))
        server = self.bench.servers[device]
        number = draw.choice([*SPARE, draw.randint(1, 10)])
        pair = labels(self.bench.drivers[device], number, number)
        if server.plant.why_not(pair) is None:
            self.bench.make(device, pair)
            self.foreign[device].add(pair)

    @rule(seed=seeds)
    def hands_break(self, seed: int) -> None:
        """Somebody takes a circuit down, ours or not."""
        STEPS["hands"] += 1
        draw = random.Random(seed)
        device = draw.choice(sorted(self.bench.servers))
        held = sorted(self.bench.held()[device])
        if held:
            self.bench.take_down(device, draw.choice(held))
        self.look("hands", died=False, owner="ann")

    @rule(keeps=st.booleans(), device=st.sampled_from(("ocs1", "ocs2")))
    def reboot(self, keeps: bool, device: str) -> None:
        STEPS["reboot"] += 1
        server = self.bench.servers[device]
        server.add_fault("reboot-keep" if keeps else "reboot-lose")
        self.do(asyncio.sleep(3 * BOOT_S))
        self.look(f"reboot of {device}", died=False, owner="ann")

    @precondition(lambda self: self.bench.owing())
    @rule()
    def time_passes(self) -> None:
        """Hosts whose commit nobody confirmed go back by themselves; those armed give up."""
        STEPS["time passes"] += 1
        for host in self.bench.fleet.all.values():
            host.armed = None
            if host.pending:
                host.active, host.pending = host.pending_to, False
        self.look("time", died=False, owner="ann")

    @rule(owner=owners, subject=st.sampled_from(("ocs1:2", "gpu03:p1", "f4-2", "gpu01", "ocs2")))
    def tag(self, owner: str, subject: str) -> None:
        if len(self.tags) < 2:
            with self.bench.store(owner) as store:
                tags = Tagouts(store, self.bench.key, who(self.bench.settings(owner)))
                self.tags.append((owner, tags.set(subject, "hands in the rack").id))

    @precondition(lambda self: self.tags)
    @rule()
    def untag(self) -> None:
        owner, tag = self.tags.pop()
        with self.bench.store(owner) as store:
            Tagouts(store, self.bench.key, who(self.bench.settings(owner))).remove(tag)

    @precondition(lambda self: not self.reserved)
    @rule(owner=owners, host=st.integers(1, HOSTS))
    def reserve(self, owner: str, host: int) -> None:
        with self.bench.store(owner) as store:
            locks = locks_of(self.bench.lab, self.bench.settings(owner), store)
            lock = locks.take("reservation", Scope(hosts=frozenset({f"gpu{host:02d}"})), "mine", for_s=600.0)
        self.reserved.append((owner, lock.id))

    @precondition(lambda self: self.reserved)
    @rule()
    def unreserve(self) -> None:
        owner, lock = self.reserved.pop()
        with self.bench.store(owner) as store:
            locks_of(self.bench.lab, self.bench.settings(owner), store).release(lock)


def _names(found: Any) -> set[str]:
    return {re.sub(r"^ocs\d:", "", name) for name in found}


def walk(steps: int, seed: int, each: int = 40) -> None:
    """So many steps, `each` at a time on a lab of its own. Raises: AssertionError - an invariant broke; with the steps before."""
    chosen = settings(
        max_examples=max(1, steps // each),
        stateful_step_count=each,
        deadline=None,
        database=None,
        phases=(Phase.generate,),  # what led to a failure is printed as it was: shrinking real time takes long and lies
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run_state_machine_as_test(seeded(seed)(type("Walk", (TwoOwners,), {})), settings=chosen)


def whole(steps: int = 2000, seed: int = 1) -> int:
    """Walk until so many steps were made; the seed of each walk is printed."""
    began = time.monotonic()
    while sum(STEPS.values()) < steps:
        print(f"  {sum(STEPS.values()):>5}/{steps} {time.monotonic() - began:5.0f} s, seed {seed}", flush=True)
        walk(200, seed)
        seed += 1
    print("  " + ", ".join(f"{count} {what}" for what, count in sorted(STEPS.items())))
    print("  commands ended: " + ", ".join(f"{count} {what}" for what, count in sorted(ENDS.items())))
    print(f"two owners: {sum(STEPS.values())} steps, no invariant broken")
    return 0


if __name__ == "__main__":
    sys.exit(whole(*map(int, sys.argv[1:3])))
