"""An opened lab: its settings, and how a verb of the engine is run on it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from optical_testbed.progress import Show
from optical_testbed_home import environment

if TYPE_CHECKING:
    from orchestrator.session import Command
    from orchestrator.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")

GENERATE_S = 30.0
"""Generating the files of an emulated lab takes less than a second; on a busy machine a few."""


@dataclass(frozen=True, slots=True)
class PrivateLab:
    """The emulated lab of one `Lab`. folder: holds its inventory, store and journals. kept: the
    folder stays after the end.
    """

    folder: Path
    kept: bool

    @property
    def inventory(self) -> Path:
        return self.folder / "inventory"

    def stop(self) -> None:
        """Stop the lab and remove its folder; repeating it changes nothing. Raises: TestbedError -
        it does not end.
        """
        from orchestrator import emulated

        if self.inventory.is_dir():
            emulated.stop_emulated_lab(self.inventory)
        if not self.kept:
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class Opened:
    """An opened lab. progress: takes the events of every call, None for no one."""

    settings: Settings
    progress: Show | None = None
    private: PrivateLab | None = None
    closed: bool = field(default=False, compare=False)

    def usable(self) -> Opened:
        """Raises: Missing - it was closed."""
        if self.closed:
            from optics.errors import Missing

            raise Missing("this Lab is closed", hint="open it again: Lab.open()")
        return self

    async def work(
        self,
        name: str,
        verb: Callable[Concatenate[Command, P], Coroutine[Any, Any, T]],
        *argv: P.args,
        **options: P.kwargs,
    ) -> T:
        """Run a verb of the engine as the command line does. name: in messages, and for the usual
        times.
        """
        from optical_testbed.events import Events
        from orchestrator.store.store import Store
        from orchestrator.verbs.invoke import GRACE_S, bounded, invoked

        settings = self.settings
        with (
            Store(settings.store_path, shared=settings.store is not None) as store,
            invoked(Events(), store, settings) as command,
        ):
            return await bounded(
                verb(command, *argv, **options), name, settings.timeout_s + GRACE_S
            )

    async def start(self) -> None:
        """Start the emulated lab, if the inventory is one and it does not run."""
        from optical_testbed.events import Events
        from orchestrator.verbs.invoke import start_lab

        start_lab(self.settings, Events())

    def within(self, timeout_s: float | None) -> Opened:
        """The same with another time limit (s); None: as it is."""
        return (
            self
            if timeout_s is None
            else replace(self, settings=replace(self.settings, timeout_s=timeout_s))
        )


def load(
    inventory: str | Path | None,
    settings: Mapping[str, object] | None,
    timeout_s: float | None,
    wait_s: float | None,
    owner: str | None,
) -> Settings:
    """The settings in force, as at the command line; those given here come first. Raises: BadFile,
    Untrusted.
    """
    from optics.errors import BadFile
    from optics.plain import did_you_mean
    from orchestrator.settings import KEYS
    from orchestrator.settings import load as load_settings

    given = dict(settings or {})
    if unknown := [
        f"settings: unknown key {key!r}{did_you_mean(key, KEYS)}"
        for key in given
        if key not in KEYS or key == "trust"
    ]:
        raise BadFile(unknown, hint=f"known: {', '.join(KEYS)}")
    own = {"inventory": inventory, "timeout": timeout_s, "wait": wait_s or None, "owner": owner}
    given |= {key: value for key, value in own.items() if value is not None}
    return load_settings({key: str(value) for key, value in given.items()})


def opened(
    inventory: str | Path | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    timeout_s: float | None = None,
    wait_s: float | None = None,
    owner: str | None = None,
    progress: Show | None = None,
) -> Opened:
    """Read the settings and check the inventory. Raises: BadFile - all problems of the files at
    once. Untrusted.
    """
    from orchestrator.session import load_lab

    found = load(inventory, settings, timeout_s, wait_s, owner)
    load_lab(found.inventory)
    return Opened(found, progress)


def private(
    hosts: int,
    ports: int,
    *,
    driver: str | None,
    folder: str | Path | None,
    timeout_s: float | None,
    progress: Show | None,
) -> Opened:
    """Write the files of an emulated lab with a store and journals of its own.

    Raises: Missing - there is no such lab; with the generator's words. BadFile - the folder is not
    empty.
    """
    from optics.errors import BadFile, Missing

    home = (
        Path(tempfile.mkdtemp(prefix="testbed-"))
        if folder is None
        else Path(folder).expanduser().absolute()
    )
    if folder is not None and home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise BadFile(
            [f"{home}: exists and is not an empty directory"],
            hint="choose another folder; nothing was written",
        )
    lab = PrivateLab(home, kept=folder is not None)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    tokens = [
        "--hosts",
        str(hosts),
        "--ports",
        str(ports),
        "--free-ports",
        *(["--driver", driver] if driver else []),
    ]
    try:
        ended = subprocess.run(
            [
                sys.executable,
                "-P",
                "-m",
                "emulators.generate",
                *tokens,
                "--out",
                lab.inventory,
                "--state",
                home / "lab",
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=environment(),
            timeout=GENERATE_S,
            check=False,
        )
        if ended.returncode:
            raise Missing(f"no such emulated lab: {ended.stderr.strip().splitlines()[-1]}")
        own = {f"{name}_dir": str(home / name) for name in ("data", "state", "lock")}
        return Opened(load(lab.inventory, own, timeout_s, None, None), progress, lab)
    except BaseException:
        lab.stop()
        raise
