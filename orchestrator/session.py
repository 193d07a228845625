"""One lab, opened: the inventory read, a driver per device, open SSH channels to the hosts. All are
asked at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from drivers.api import CircuitSwitch, Ready, at_once
from drivers.registry import driver_class, driver_traits, open_device
from drivers.watch import PATIENCE_S, patience_s
from optics import (
    BadFile,
    Change,
    DeviceName,
    HostName,
    Identity,
    Missing,
    Outcome,
    Setting,
    TestbedError,
    Traits,
    Unreachable,
)
from optics.plain import did_you_mean
from optics.plan import Plan
from orchestrator.credentials import with_known_hosts, with_secret
from orchestrator.deadline import deadline
from orchestrator.fabric.lightpath import Held
from orchestrator.files.reading import attentive, text_of
from orchestrator.hosts import Hello, Hosts
from orchestrator.hosts.launch import check_launch
from orchestrator.hosts.program import with_files
from orchestrator.inventory.device_ports import misplaced, unsupported
from orchestrator.inventory.folders import FILES, PROGRAMS, absent
from orchestrator.inventory.lab import Lab, read_lab
from orchestrator.inventory.losses import LOSSES, read_losses
from orchestrator.plan.reader import read_plan
from orchestrator.settings import BOUNDS, Bounds, Settings
from orchestrator.store.store import Store
from orchestrator.telemetry.progress import Progress


def load_lab(inventory: Path) -> Lab:
    """Read the files of an inventory directory. Raises: BadFile - all problems of all files at
    once.
    """
    if (error := absent(inventory)) is not None:
        raise error
    names = tuple(str(inventory / n) for n in FILES)
    texts = [_text(Path(n)) for n in names]
    programs = inventory / PROGRAMS
    texts.append(_text(programs) if programs.exists() else "programs: {}")
    if missing := [
        f"{n}: {t.strerror or t}"
        for n, t in zip((*names, programs), texts, strict=True)
        if isinstance(t, OSError)
    ]:
        raise BadFile(
            missing,
            hint="an inventory is a directory with hosts.yml, devices.yml and fibres.yml; see inventory/example-lab",
        )
    with attentive(str(inventory)):
        return lab_of_texts(dict(zip((*FILES, PROGRAMS), map(str, texts), strict=True)), inventory)


def lab_of_texts(texts: Mapping[str, str], inventory: Path) -> Lab:
    """The lab of the texts of an inventory's files, by name, which are or will be in this
    directory. Raises: BadFile - all problems of all files at once.
    """
    hosts, devices, fibres = FILES
    names = tuple(str(inventory / name) for name in (*FILES, PROGRAMS))
    lab = read_lab(
        texts[hosts],
        texts[devices],
        texts[fibres],
        texts.get(PROGRAMS, "programs: {}"),
        names=(names[0], names[1], names[2], names[3]),
    )
    lab = with_files(lab, inventory)
    own = inventory / LOSSES
    if own.exists():
        if isinstance(text := _text(own), OSError):
            raise BadFile([f"{own}: {text.strerror or text}"], hint="make it readable")
        lab = replace(lab, losses=read_losses(text, str(own), lab.devices))
    return with_known_hosts(lab.with_traits(_traits(lab)), inventory, _options(lab))


def _traits(lab: Lab) -> Mapping[DeviceName, Traits]:
    """The drivers' traits of their devices; `open_session` reports unknown drivers, all at once."""
    found = {}
    for name, config in lab.devices.items():
        try:
            found[name] = driver_traits(config)
        except BadFile:
            continue
    return found


def _options(lab: Lab) -> Mapping[DeviceName, Collection[str]]:
    """The options each device's driver takes; none for an unknown driver."""
    found: dict[DeviceName, Collection[str]] = {}
    for name, config in lab.devices.items():
        try:
            found[name] = driver_class(config.driver).OPTIONS
        except BadFile:
            continue
    return found


@dataclass(frozen=True, slots=True)
class PlanText:
    """A plan that is in no file; `name` stands for the file in error messages."""

    text: str
    name: str = "plan"

    def __str__(self) -> str:
        return self.name


def load_plan(path: Path | PlanText, lab: Lab) -> tuple[Plan, str]:
    """Read a plan; return it with its text. Raises: BadFile - all problems at once. Infeasible -
    its job cannot be started.
    """
    text = path.text if isinstance(path, PlanText) else _text(path)
    if isinstance(text, OSError):
        if isinstance(text, FileNotFoundError) and isinstance(path, Path):
            nearby = [str(each) for each in sorted(path.parent.glob("*.json"))]
            raise BadFile(
                [f"{path}: no such file{did_you_mean(str(path), nearby)}"],
                hint="see examples/ for plans to start from",
            )
        raise BadFile(
            [f"{path}: {text.strerror or text}"], hint="see examples/ for plans to start from"
        )
    with attentive(str(path)):
        plan = read_plan(text, str(path), lab)
    if plan.job is not None:
        check_launch(plan.job, lab)
    return plan, text


@dataclass(frozen=True, slots=True)
class Observation:
    """What devices and hosts answered. For one that did not answer there is its error instead of
    its state.
    """

    settings: Mapping[DeviceName, frozenset[Setting]]
    hellos: Mapping[HostName, Hello]
    errors: Mapping[str, TestbedError]

    @property
    def held(self) -> frozenset[Setting]:
        """Everything that all devices hold."""
        none: frozenset[Setting] = frozenset()
        return none.union(*self.settings.values())

    def complete(self) -> Observation:
        """Return self if all answered. Raises: Unreachable - with the error of each that did
        not.
        """
        if not self.errors:
            return self
        text = "\n".join(str(e) for e in self.errors.values())
        first = next(iter(self.errors.values()))
        kinds = {type(e) for e in self.errors.values()}
        hint = first.hint or "see what is wrong with: testbed doctor"
        if len(kinds) == 1:
            raise type(first)(text, hint=hint)
        raise Unreachable(text, hint=hint)

    def needing(self, names: Collection[str], spares: Collection[str] = ()) -> list[str]:
        """Devices and hosts that do not answer and are not needed, in words. Raises: as `complete`,
        of those in `names`.
        """
        replace(self, errors={n: e for n, e in self.errors.items() if n in names}).complete()
        unused = {
            n: "and so can take no host's place now" if n in spares else "and is not needed"
            for n in self.errors
        }
        return [f"{n} does not answer {unused[n]}: {e.line}" for n, e in self.errors.items()]


@dataclass
class Session:
    """An open lab."""

    lab: Lab
    inventory: Path
    devices: Mapping[DeviceName, CircuitSwitch]
    hosts: Hosts
    bounds: Bounds = BOUNDS
    away: dict[HostName, float] = field(default_factory=dict)
    """Hosts beside those of ranks that did not answer, and when to ask them again (monotonic s)."""

    @property
    def traits(self) -> Mapping[DeviceName, Traits]:
        """The devices' traits by their drivers, overridden by the inventory's own numbers."""
        return {name: device.traits for name, device in self.devices.items()}

    def patience_s(self, names: Iterable[DeviceName]) -> float:
        """Longest time (s) that a driver of these devices waits for a device that reports no
        change, 0 if none has such a limit.

        Robots have none: their drivers wait for each move, by the robot's own queue.
        """
        configs = [
            c
            for c in map(self.lab.devices.__getitem__, names)
            if "patience_s" in driver_class(c.driver).OPTIONS
        ]
        found = (
            patience_s(
                self.devices[c.name].traits,
                c.options.get("patience_s"),
                getattr(driver_class(c.driver), "PATIENCE_S", PATIENCE_S) / c.time_scale,
            )
            for c in configs
        )
        return max(found, default=0.0)

    async def observe(self, *, hosts: bool = True) -> Observation:
        """Read every device completely and, unless `hosts` is false, greet every host; all at
        once.
        """
        settings: dict[DeviceName, frozenset[Setting]] = {}
        errors: dict[str, TestbedError] = {}

        async def read(name: DeviceName, device: CircuitSwitch) -> None:
            try:
                settings[name] = await device.read()
            except TestbedError as error:
                errors[name] = error

        connecting = asyncio.ensure_future(self.hosts.channels.connect() if hosts else _nobody())
        try:
            await asyncio.gather(*(read(n, d) for n, d in self.devices.items()))
            answers = await connecting
        finally:
            connecting.cancel()
        hellos: dict[HostName, Hello] = {}
        for name, answer in answers.items():
            if isinstance(answer, Hello):
                hellos[name] = answer
            else:
                errors[name] = answer
        return Observation(settings, hellos, errors)


async def _nobody() -> Mapping[HostName, Hello | TestbedError]:
    return {}


async def check_ports(session: Session, made: Held) -> None:
    """Ask the devices for their ports, and compare them with those of settings that are to be made
    there.

    A device that does not say what ports it has is taken to have them. Raises: BadFile - with the
    places in fibres.yml.
    """
    reply: dict[DeviceName, Identity] = {}

    async def ask(name: DeviceName) -> None:
        with suppress(TestbedError):
            reply[name] = await session.devices[name].identify()

    await asyncio.gather(*(ask(name) for name, held in made.items() if held))
    sides = {(s.ingress, True) for held in made.values() for s in held} | {
        (s.egress, False) for held in made.values() for s in held
    }
    wrong = {
        p: w
        for p, enters in sides
        if (who := reply.get(p.device)) and (w := unsupported(who, p.label, enters=enters))
    }
    if not wrong:
        return
    file = session.inventory / FILES[2]
    text = _text(file)
    lines = [] if isinstance(text, OSError) else misplaced(text, str(file), reply, wrong)
    hint = f"correct {FILES[2]}, or the device's address in {FILES[1]}; nothing was changed"
    raise BadFile(
        lines or [f"{port.device} {text}" for port, text in sorted(wrong.items())], hint=hint
    )


def open_driver(lab: Lab, name: DeviceName) -> CircuitSwitch:
    """The driver of a device; without its password, a stand-in that raises that error for every
    request. Raises: BadFile.
    """
    try:
        return open_device(with_secret(lab, lab.devices[name]))
    except Missing as error:
        return Unopened(name, lab.traits_of(name), error)


@asynccontextmanager
async def open_session(
    lab: Lab, inventory: Path, run_dir: Path, bounds: Bounds = BOUNDS
) -> AsyncIterator[Session]:
    """Open the lab; nothing is sent until the first request. `run_dir`: where Ansible's own output
    goes.

    A device without its password raises that error for every request. Raises: BadFile - all
    problems of devices.yml.
    """
    devices: dict[DeviceName, CircuitSwitch] = {}
    problems: list[str] = []
    for name in lab.devices:
        try:
            devices[name] = open_driver(lab, name)
        except BadFile as error:
            problems += [
                p if p.startswith("devices.yml") else f"{inventory / 'devices.yml'}: {p}"
                for p in error.problems
            ]
    if problems:
        raise BadFile(problems, hint="docs/reference/drivers.md lists drivers, options and traits")
    hosts = Hosts(lab, inventory, run_dir, bounds.at_once)
    # asyncio's own pool has few threads on a small machine; a thread per host waits for its host
    # and for no other
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(len(lab.hosts) + 4, "host"))
    try:
        yield Session(lab, inventory, devices, hosts, bounds)
    finally:
        await asyncio.gather(
            hosts.close(), *(d.close() for d in devices.values()), return_exceptions=True
        )


@dataclass(frozen=True, slots=True)
class Command:
    """What every verb works with: where it shows its progress, the run store, and the settings in
    force.
    """

    progress: Progress
    store: Store
    settings: Settings

    @property
    def inventory(self) -> Path:
        """The directory of the inventory."""
        return self.settings.inventory

    @property
    def timeout_s(self) -> float:
        """Longest time (s) the verb may take."""
        return self.settings.timeout_s

    @asynccontextmanager
    async def opened(self, lab: Lab, verb: str) -> AsyncIterator[Session]:
        """Open the lab for `verb`, which has `timeout_s` from now. Raises: TimedOut; as
        `open_session`.
        """
        async with (
            deadline(self.timeout_s, verb),
            open_session(
                lab, self.inventory, self.settings.cache_dir / "ansible", self.settings.bounds
            ) as session,
        ):
            yield session


def _text(path: Path) -> str | OSError:
    try:
        return text_of(path)
    except OSError as error:
        return error
    except UnicodeDecodeError as error:
        return OSError(f"not UTF-8 text: {error}")


@dataclass
class Unopened:
    """A device that could not be opened: each of its methods raises the reason."""

    name: DeviceName
    traits: Traits
    why: Missing

    async def identify(self) -> Identity:
        self._refuse()

    async def read(self) -> frozenset[Setting]:
        self._refuse()

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        self._refuse()

    async def close(self) -> None:
        pass

    def _refuse(self) -> NoReturn:
        raise Missing(str(self.why), hint=self.why.hint)
