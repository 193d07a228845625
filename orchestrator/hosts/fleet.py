"""The hosts of a lab: Ansible for what takes its time (provision, stage, launch, collect), persistent channels for the rest."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import secrets
import tarfile
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from agent.fence import FENCED
from optics import Garbled, HostName, HostPort, Refused, TestbedError, TimedOut, Unreachable
from optics.plan import Job
from orchestrator.credentials import withheld
from orchestrator.fabric.rules import Macs, Rules
from orchestrator.hosts import facts, launch, render
from orchestrator.hosts.api import (
    ClockReading,
    Committed,
    FibreEnd,
    Hello,
    HostEvent,
    JobState,
    PortCounters,
    Probe,
    Provisioned,
    Staged,
    Tail,
)
from orchestrator.hosts.channel import Channel, hello_of, refusal
from orchestrator.hosts.counters import port_counters
from orchestrator.hosts.failures import one_error
from orchestrator.hosts.runner import Ansible, Play
from orchestrator.inventory.lab import Lab

T = TypeVar("T")


class Hosts:
    """See `HostSide`. `inventory`: the directory with hosts.yml. `artefacts`: where Ansible's output and collected files go."""

    def __init__(self, lab: Lab, inventory: Path, artefacts: Path) -> None:
        self.lab = lab
        self.hellos: dict[HostName, Hello] = {}
        self.token: int | None = None
        self.artefacts = artefacts
        # a thread per host: one that does not answer must not keep another waiting
        self._threads = ThreadPoolExecutor(max_workers=len(lab.hosts) + 1, thread_name_prefix="hosts")
        self._channels = {name: Channel(host, self._event, self._threads) for name, host in lab.hosts.items()}
        self._ansible = Ansible(inventory, artefacts, withheld(lab))
        self._queues: list[asyncio.Queue[HostEvent]] = []
        self._playing = asyncio.Lock()

    async def __aenter__(self) -> Hosts:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- the channel

    async def connect(
        self, names: Collection[HostName] | None = None, timeout_s: float = 10.0
    ) -> Mapping[HostName, Hello | TestbedError]:
        """Connect to all named hosts at once; one that cannot be reached is an error in the result and not raised."""

        async def one(name: HostName) -> Hello | TestbedError:
            try:
                self.hellos[name] = await self._channels[name].connect(timeout_s)
                return self.hellos[name]
            except TestbedError as error:
                self.hellos.pop(name, None)
                return error

        names = self._names(names)
        return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))

    async def greet(self, names: Collection[HostName] | None = None) -> Mapping[HostName, Hello]:
        """What connected hosts hold now, asked over the channels there are: a millisecond instead of a login."""
        answers = await self._ask({name: {} for name in self._names(names)}, "hello")
        self.hellos |= {name: hello_of(values, self.hellos[name].same_clock) for name, values in answers.items()}
        return {name: self.hellos[name] for name in answers}

    def unprovisioned(self) -> tuple[HostName, ...]:
        """Connected hosts whose facts, committer or workloads are not what this program would install."""
        return tuple(n for n, h in self.lab.hosts.items() if n in self.hellos and self.hellos[n].provision != facts.facts(h)["sha"])

    async def close(self) -> None:
        """Close every channel and Ansible's connections. Committers, routes and jobs stay."""
        ansible = asyncio.get_running_loop().run_in_executor(self._threads, self._ansible.close)
        await asyncio.gather(ansible, *(channel.close() for channel in self._channels.values()))
        self._threads.shutdown(wait=False)

    def macs(self) -> Mapping[HostPort, Macs]:
        """The MAC addresses of all ports of connected hosts, as their kernels report them."""
        return {HostPort(n, p): Macs(s.mac, s.eth_mac) for n, hello in self.hellos.items() for p, s in hello.ports.items() if s.mac}

    def subscribe(self) -> asyncio.Queue[HostEvent]:
        """Return a queue that gets every event from now on; give it back with `unsubscribe`."""
        queue: asyncio.Queue[HostEvent] = asyncio.Queue()
        self._queues.append(queue)
        return queue

    def unsubscribe(self, queue: asyncio.Queue[HostEvent]) -> None:
        self._queues.remove(queue)

    def _event(self, host: HostName, kind: str, at_ns: int, values: Mapping[str, Any]) -> None:
        for queue in self._queues:
            queue.put_nowait(HostEvent(host, kind, at_ns, values))

    def _names(self, names: Collection[HostName] | None) -> list[HostName]:
        return list(self._channels if names is None else names)

    async def _ask(
        self, requests: Mapping[HostName, Mapping[str, Any]], op: str, timeout_s: float = 5.0
    ) -> dict[HostName, dict[str, Any]]:
        """Send one request to each host, all before waiting for any; raise one error that names every host that failed."""
        token = self._token() if op in FENCED else {}
        sent = {name: self._channels[name].send(op, **fields, **token) for name, fields in requests.items()}
        if sent:
            await asyncio.wait(sent.values(), timeout=timeout_s)
        answers: dict[HostName, dict[str, Any]] = {}
        failed: dict[HostName, TestbedError] = {}
        for name, future in sent.items():
            if not future.done():
                future.cancel()
                failed[name] = TimedOut(f"{name}: no answer to {op} after {timeout_s:g} s", hint="testbed doctor")
            elif (error := future.exception()) is None:
                answers[name] = future.result()
            elif isinstance(error, TestbedError):
                failed[name] = error
            else:
                raise error
        if failed:
            raise one_error(failed, len(answers))
        return answers

    async def _all(
        self, names: Collection[HostName] | None, op: str, fields: Mapping[str, Any], timeout_s: float = 5.0
    ) -> dict[HostName, dict[str, Any]]:
        """Send the same request to each of `names`."""
        return await self._ask(dict.fromkeys(self._names(names), fields), op, timeout_s)

    def _token(self) -> dict[str, int]:
        return {} if self.token is None else {"token": self.token}

    async def fence(self, token: int, names: Collection[HostName]) -> None:
        """From now on speak as the run with `token`; these hosts listen to no older run any more, and drop what one has armed.

        Raises: Locked - a newer run holds one of them.
        """
        self.token = token
        strangers = self.unprovisioned()  # an older committer knows no fence
        await self._all([name for name in names if name in self.hellos and name not in strangers], "fence", {})

    # --- generations

    async def commit(
        self, generation: int, names: Collection[HostName] | None = None, revert_after_s: float | None = None
    ) -> Mapping[HostName, Committed]:
        """Make a staged generation active now; the hosts go back by themselves after `revert_after_s` unless `confirm` comes."""
        request = {"generation": generation, "revert_after_s": revert_after_s}
        answers = await self._all(names, "commit", request)
        return {name: self._committed(name, values) for name, values in answers.items()}

    async def arm(
        self,
        generation: int,
        when_up: Mapping[HostName, Collection[int]],
        *,
        revert_after_s: float | None = None,
        deadline_s: float = 60.0,
        cross: Mapping[HostName, Collection[str]] | None = None,
    ) -> None:
        """Let each host commit `generation` by itself once carrier came up anew on its listed ports; call before light moves.

        cross: addresses of neighbours that each host asks as soon as it has committed; a `crossed` event tells when all answered.
        """
        requests = {
            name: {
                "generation": generation,
                "when_up": [self.lab.interface(HostPort(name, p)) for p in sorted(ports)],
                "revert_after_s": revert_after_s,
                "deadline_s": deadline_s,
                "cross": sorted((cross or {}).get(name, ())),
            }
            for name, ports in when_up.items()
        }
        await self._ask(requests, "arm")

    async def disarm(self, names: Collection[HostName] | None = None) -> None:
        await self._all(names, "disarm", {})

    async def wait_committed(
        self, generation: int, names: Collection[HostName], deadline_s: float, queue: asyncio.Queue[HostEvent] | None = None
    ) -> Mapping[HostName, Committed | TestbedError]:
        """Wait until every named host has committed `generation` by itself, or says why not.

        Give the `queue` subscribed before the light moved, else a commit that was quicker than this call is not seen.
        """
        own = queue or self.subscribe()
        found: dict[HostName, Committed | TestbedError] = {}
        waiting = set(names)
        try:
            async with asyncio.timeout(deadline_s):
                while waiting:
                    event = await own.get()
                    if event.host not in waiting or event.values.get("generation", generation) != generation:
                        continue
                    outcome = self._outcome(event)
                    if outcome is not None:
                        found[event.host] = outcome
                        waiting.discard(event.host)
        except TimeoutError:
            for name in waiting:
                found[name] = TimedOut(f"{name}: generation {generation} was not committed within {deadline_s:g} s")
        finally:
            if queue is None:
                self.unsubscribe(own)
        return found

    def _outcome(self, event: HostEvent) -> Committed | TestbedError | None:
        generation = event.values.get("generation")
        match event.kind:
            case "committed":
                return self._committed(event.host, event.values)
            case "expired":
                return TimedOut(
                    f"{event.host}: no carrier on {', '.join(event.values['missing'])}; generation {generation} stays staged"
                )
            case "failed":
                return Refused(f"{event.host}: generation {generation}: {event.values['error']}")
            case "lost":
                return Unreachable(f"{event.host}: the channel to its committer is gone: {event.values['error']}")
        return None

    def _committed(self, name: HostName, values: Mapping[str, Any]) -> Committed:
        offset = self._channels[name].offset_ns
        link = values.get("t_link_ns")
        return Committed(
            name,
            values["generation"],
            values["previous"],
            values["t_commit_ns"] - offset,
            values["took_us"],
            None if link is None else link - offset,
        )

    async def confirm(self, generation: int, names: Collection[HostName] | None = None) -> None:
        """Keep what was committed: the hosts stop counting down. Older generations are dropped."""
        await self._all(names, "confirm", {"generation": generation})

    async def revert(self, names: Collection[HostName] | None = None) -> Mapping[HostName, int | None]:
        """Go back to the generation active before the last commit; returns which that is (None: no routes at all)."""
        answers = await self._all(names, "revert", {})
        return {name: values["generation"] for name, values in answers.items()}

    async def clear(self, names: Collection[HostName] | None = None) -> None:
        """Remove every generation: the hosts hold no route of ours any more."""
        await self._all(names, "clear", {}, 30.0)

    # --- looking

    async def probe(
        self, targets: Mapping[HostName, Mapping[str, int | None]], timeout_s: float = 0.5
    ) -> Mapping[HostName, Mapping[str, Probe]]:
        """From each host, probe addresses with the planned number of links (None: any); a wrong count is asked again in time."""
        requests = {
            name: {"targets": [{"address": a, "hops": h} for a, h in wanted.items()], "timeout_s": timeout_s}
            for name, wanted in targets.items()
        }
        answers = await self._ask(requests, "probe", timeout_s + 5.0)
        return {name: {r["address"]: _probe(name, r) for r in values["results"]} for name, values in answers.items()}

    async def neighbours(
        self, ports: Collection[HostPort], timeout_s: float = 0.3, *, hear: Collection[HostPort] | None = None
    ) -> Mapping[HostPort, FibreEnd]:
        """Who is at the other end of each port, by its own signed word: names swapped fibres.

        hear: the ports of `ports` that must hear somebody; a host answers once its own have (None: once each port was answered).
        Every look has a key of its own, which the hosts get over SSH and nobody else knows.
        """
        by_host: dict[HostName, list[int]] = {}
        for port in sorted(ports):
            by_host.setdefault(port.host, []).append(port.number)
        heard = None if hear is None else set(hear)
        common = {"timeout_s": timeout_s, "key": secrets.token_hex(32)}
        requests: dict[HostName, dict[str, Any]] = {name: {"ports": numbers, **common} for name, numbers in by_host.items()}
        if heard is not None:
            for name, request in requests.items():
                request["hear"] = [number for number in by_host[name] if HostPort(name, number) in heard]
        answers = await self._ask(requests, "neighbours", timeout_s + 5.0)
        return {
            HostPort(name, int(number)): FibreEnd(HostPort(name, int(number)), v["carrier"], _end(v["answered"]), _end(v["heard"]))
            for name, values in answers.items()
            for number, v in values["ports"].items()
        }

    async def traffic(self, requests: Mapping[HostName, Mapping[str, Any]], timeout_s: float) -> dict[HostName, dict[str, Any]]:
        """Open, drive or read measured flows (`agent/traffic.py`)."""
        return await self._ask(requests, "traffic", timeout_s)

    async def counters(self, names: Collection[HostName] | None = None) -> Mapping[HostPort, PortCounters]:
        """One look at every port's counters."""
        answers = await self._all(names, "counters", {})
        offsets = {name: self._channels[name].offset_ns for name in answers}
        return {port: v for name, answer in answers.items() for port, v in port_counters(name, answer, offsets[name]).items()}

    async def stream_counters(
        self, interval_s: float | None, names: Collection[HostName] | None = None, *, batch_s: float = 1.0
    ) -> None:
        """Let hosts sample every `interval_s` (>= 0.001, s; None: stop) and send `counters` events, read with `counters.samples`.

        batch_s: how long (s) they gather samples; longer while they are armed.
        """
        await self._all(names, "counters", {"interval_s": interval_s, "batch_s": batch_s})

    async def keep_counters(self, job: str, interval_s: float, names: Collection[HostName]) -> None:
        """Let hosts sample every `interval_s` (0.1 to 8, s) and keep the samples themselves, until a job of theirs ends."""
        await self._ask({name: {"name": job, "interval_s": interval_s} for name in names}, "counters.keep")

    async def kept_counters(self, job: str, offsets: Mapping[HostName, int]) -> Mapping[HostName, Tail]:
        """A piece of what each host kept, from byte `offsets` on: lines that `counters.samples` reads as a `counters` event."""
        answers = await self._ask({name: {"name": job, "offset": at} for name, at in offsets.items()}, "counters.kept")
        return {name: Tail(v["data"], v["offset"], v["size"], "") for name, v in answers.items()}

    def leave_counters(self) -> None:
        """Ask hosts to stop sampling and wait for nobody: what fails meanwhile has no second to lose."""
        for channel in self._channels.values():
            if channel.attached:
                channel.send("counters", interval_s=None).add_done_callback(lambda done: done.cancelled() or done.exception())

    async def stream_gpus(self, interval_s: float | None, names: Collection[HostName] | None = None) -> None:
        """Let hosts look at their GPUs every `interval_s` (>= 0.1, s; None: stop); those that have some send `gpus` events."""
        await self._all(names, "gpus", {"interval_s": interval_s})

    async def clocks(self, names: Collection[HostName] | None = None, within_s: float = 5.0) -> Mapping[HostName, ClockReading]:
        """Ask hosts one after the other what time it is: answers that come together would wait for each other here.

        within_s: no further host is asked after this long (s).
        """
        found: dict[HostName, ClockReading] = {}
        give_up = time.monotonic() + within_s
        for name in self._names(names):
            began, wall_ns = time.monotonic_ns(), time.time_ns()
            answer = (await self._ask({name: {}}, "clock"))[name]
            took = time.monotonic_ns() - began
            found[name] = ClockReading(answer["wall_ns"] - wall_ns - took // 2, took)
            if time.monotonic() > give_up:
                break
        return found

    # --- through Ansible

    async def provision(self, names: Collection[HostName] | None = None) -> Mapping[HostName, Provisioned]:
        """Install and start the committer, bring the host to its facts, and attach to it. Idempotent."""
        names = self._names(names)
        if not names:
            return {}
        told = {name: render.pack(facts.facts(self.lab.hosts[name]), name) for name in names}
        play = await self._play(
            "provision.yml",
            names,
            {"testbed_archive": facts.archive(), "testbed_archive_digest": facts.archive_digest(), "testbed_facts": told},
        )
        found = {}
        for name in names:
            done, started = _lines(name, play.said[name]["provision"], 2)
            found[name] = Provisioned(name, tuple(done["changed"]), tuple(done["notes"]), started["started"])
        failed = {name: hello for name, hello in (await self.connect(names)).items() if not isinstance(hello, Hello)}
        failed |= {
            name: Refused(f"{name}: provisioned, but its committer does not answer")
            for name in names
            if name not in failed and not self.hellos[name].installed
        }
        if failed:
            raise one_error(failed, len(names) - len(failed))
        return found

    async def stage(self, generations: Mapping[int, Mapping[HostName, Rules]]) -> Mapping[HostName, Mapping[int, Staged]]:
        """Put route generations into tables nobody looks at yet, all in one play."""
        told = render.payloads(generations, self._token())
        if not told:
            return {}
        play = await self._play("stage_rules.yml", list(told), {"testbed_rules": told})
        found: dict[HostName, dict[int, Staged]] = {}
        for name in told:
            wanted = [g for g, hosts in sorted(generations.items()) if name in hosts]
            lines = _lines(name, play.said[name]["stage"], len(wanted))
            found[name] = {v["generation"]: Staged(v["generation"], v["routes"], v["table"], v.get("congctl")) for v in lines}
        return found

    async def stage_warm(
        self, generations: Mapping[int, Mapping[HostName, Rules]], timeout_s: float = 5.0
    ) -> Mapping[HostName, Mapping[int, Staged]]:
        """As `stage`, over the channels there are: milliseconds, for changes that cannot wait for a play."""
        told = render.payloads(generations)
        answers = await self._ask({name: {"packed": packed} for name, packed in told.items()}, "stage", timeout_s)
        return {
            name: {v["generation"]: Staged(v["generation"], v["routes"], v["table"], v.get("congctl")) for v in values["staged"]}
            for name, values in answers.items()
        }

    async def watch_links(self, names: Collection[HostName] | None = None) -> Mapping[HostPort, bool]:
        """From now on hear of every carrier that comes or goes, as `link` events; returns the carriers there are."""
        answers = await self._all(names, "watch", {"links": True})
        return {HostPort(name, int(port)): up for name, values in answers.items() for port, up in values["links"].items()}

    def attached(self) -> tuple[HostName, ...]:
        """Hosts whose committer can be asked now."""
        return tuple(name for name, channel in self._channels.items() if channel.attached)

    async def launch(self, job: Job, run: str, *, resume: bool = False) -> Mapping[HostName, JobState]:
        """Start the ranks of a job; `run` makes its name on the hosts unique."""
        wanted = launch.requests(job, self.lab, run, resume=resume)
        told = {name: render.pack(request | self._token(), name) for name, request in wanted.items()}
        play = await self._play("launch.yml", list(told), {"testbed_requests": told})
        return {name: JobState(name, "running", pid=_lines(name, play.said[name]["launch"], 1)[0]["pid"]) for name in told}

    async def collect(self, job: str, names: Collection[HostName] | None = None) -> Mapping[HostName, Path]:
        """Bring the job's files home, into `artefacts/HOST/`; returns each host's folder."""
        names = self._names(names)
        play = await self._play("collect.yml", names, {"testbed_job": job})
        found = {}
        for name in names:
            archive = base64.b64decode(_lines(name, play.said[name]["collect"], 1)[0]["archive"])
            _unpack(archive, self.artefacts / name)
            found[name] = self.artefacts / name / job
        return found

    async def _play(self, playbook: str, names: Collection[HostName], variables: Mapping[str, Any]) -> Play:
        async with self._playing:
            play = await asyncio.get_running_loop().run_in_executor(self._threads, self._ansible.play, playbook, names, variables)
        if play.failed:
            raise one_error(play.failed, len(names) - len(play.failed))
        return play

    # --- jobs, over the channel

    async def job_states(self, job: str, names: Collection[HostName] | None = None) -> Mapping[HostName, JobState]:
        """How each rank of a job is; `job` is its name on the hosts (`launch.job_name`)."""
        answers = await self._all(names, "job.status", {"name": job})
        return {name: JobState(name, v["state"], v.get("code"), v.get("pid")) for name, v in answers.items()}

    async def stop_job(
        self, job: str, grace_s: float = 10.0, names: Collection[HostName] | None = None
    ) -> Mapping[HostName, JobState]:
        """SIGTERM to every rank, SIGKILL to those that still run after `grace_s`; through Ansible where the channel is lost."""
        lost = [name for name in self._names(names) if not self._channels[name].attached]
        near = [name for name in self._names(names) if name not in lost]
        answers = await self._all(near, "job.stop", {"name": job, "grace_s": grace_s}, grace_s + 5.0)
        if lost:
            request = {"op": "job.stop", "name": job, "grace_s": grace_s} | self._token()
            play = await self._play("stop_job.yml", lost, {"testbed_requests": {name: render.pack(request, name) for name in lost}})
            answers |= {name: _lines(name, play.said[name]["stop"], 1)[0] for name in lost}
        return {name: JobState(name, v["state"], v.get("code"), v.get("pid")) for name, v in answers.items()}

    async def tail(self, job: str, host: HostName, file: str = "log", offset: int = 0) -> Tail:
        """A piece of one of the job's files on a host, from byte `offset` on (negative: from the end)."""
        values = (await self._ask({host: {"name": job, "file": file, "offset": offset}}, "job.tail"))[host]
        return Tail(values["data"], values["offset"], values["size"], values["state"])


def _probe(source: HostName, r: Mapping[str, Any]) -> Probe:
    return Probe(
        source, r["address"], r["ok"], r.get("hops"), r.get("back_hops"), r.get("rtt_us"), r.get("host"), r.get("error", "")
    )


def _end(peer: Mapping[str, Any] | None) -> HostPort | None:
    return None if peer is None else HostPort(peer["host"], peer["port"])


def _lines(host: HostName, text: str, count: int) -> list[dict[str, Any]]:
    """The JSON lines a committer printed. Raises: Garbled - not that many. Refused - one of them says no."""
    try:
        found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    except ValueError:
        found = []
    for values in found:
        if not values.get("ok", True):
            raise refusal(host, values)
    if len(found) != count:
        raise Garbled(f"{host}: its committer printed {text[:300]!r} where {count} lines of JSON were wanted")
    return found


def _unpack(archive: bytes, folder: Path) -> None:
    """Write the plain files of a tar archive below `folder`, whatever their names try (Python 3.11.2 has no filter)."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            path = (folder / member.name).resolve()
            if (content := tar.extractfile(member) if member.isreg() else None) is not None and folder.resolve() in path.parents:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
