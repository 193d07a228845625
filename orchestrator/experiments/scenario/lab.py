"""The emulated lab of a scenario: generated with its parameters, on free ports, and stopped when
the scenario ends.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import optical_testbed_home
from optics.errors import BadFile
from orchestrator import emulated
from orchestrator.experiments.files.scenario.values import WantedLab
from orchestrator.inventory.edges import RTO_MIN_MS

LONGEST_S = 60.0
"""For an answer to a request about the programs of all hosts."""
_SETTLE = re.compile(r"(settle_s: )[0-9.e-]+")


def prepare_lab(folder: Path, wanted: WantedLab) -> Path:
    """Write the inventory into `folder` and return its directory; a lab that an interrupted run
    left there is stopped first.

    Raises: BadFile - there is no such lab; with the generator's message.
    """
    inventory = folder / "inventory"
    if emulated.is_emulated(inventory):
        emulated.stop_emulated_lab(inventory)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    wanted = dilated_lab(wanted)
    ports = ["--ring"] if wanted.ring else ["--ports", wanted.ports]
    size = [
        "--hosts",
        wanted.hosts,
        *ports,
        "--rate-mbps",
        f"{wanted.rate_mbps:.10g}",
        "--rack",
        wanted.rack,
    ]
    switches = [word for kind in wanted.electrical for word in ("--electrical", kind)]
    switches += [word for line in wanted.lines for word in ("--line", line)]
    switches += ["--queue", wanted.queue] if wanted.queue else []
    switches += ["--driver", wanted.driver] if wanted.driver else []
    switches += ["--wavelengths", str(wanted.wavelengths)] if wanted.wavelengths else []
    where = [
        "--free-ports",
        "--settle-s",
        wanted.settle_ms / 1e3,
        "--state",
        folder / "state",
        "--out",
        inventory,
    ]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "emulators.generate", *map(str, [*size, *switches, *where])],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=optical_testbed_home.environment(),
        check=False,
    )
    if done.returncode != 0:
        raise BadFile(
            [f"lab: {(done.stderr.strip().splitlines() or ['the emulators cannot make it'])[-1]}"]
        )
    page = inventory / "emulator.yml"
    k = wanted.dilation
    line = (f"dilation: {k:g}\n" if k != 1 else "") + f"seed: {wanted.seed}"
    page.write_text(
        re.sub(r"(?m)^seed: \d+", line, page.read_text(encoding="utf-8")), encoding="utf-8"
    )
    more = {
        "storage_mbps": wanted.storage_mbps,
        "rto_min_ms": round(k * RTO_MIN_MS) if k != 1 else 0,
    }
    page = inventory / "hosts.yml"
    line = r"\g<0>" + "".join(
        f"\n        testbed_{name}: {value:g}" for name, value in more.items() if value
    )
    text = re.sub(r"(?m)^        testbed_link_mbps: .*", line, page.read_text(encoding="utf-8"))
    if wanted.sites:
        place = itertools.count()

        def with_site(found: re.Match[str]) -> str:
            site = 1 + next(place) * wanted.sites // wanted.hosts
            return f"{found[0]}{found[1]}testbed_site: site{site}\n"

        text = re.sub(r"(?m)^( +)testbed_host_id: .*\n", with_site, text)
    page.write_text(text, encoding="utf-8")
    if k != 1 and "time_scale: " in (inventory / "devices.yml").read_text(encoding="utf-8"):
        raise BadFile(
            [
                f"lab: {wanted.driver} runs faster here than a real one (time_scale), so it cannot be dilated"
            ]
        )
    return inventory


def dilated_lab(wanted: WantedLab) -> WantedLab:
    """The lab with the rates and times that its dilation makes of them. Bytes and packets, of
    queues too, stay.
    """
    k = wanted.dilation
    if k == 1:
        return wanted
    lines = []
    for line in wanted.lines:
        port, delay_ms, packets, lost, rate = [*line.split(":"), "0", "0"][:5]
        lines.append(f"{port}:{k * float(delay_ms):.10g}:{packets}:{lost}:{float(rate) / k:.10g}")
    return replace(
        wanted,
        rate_mbps=wanted.rate_mbps / k,
        settle_ms=k * wanted.settle_ms,
        electrical=tuple(
            re.sub(r"@([0-9.]+)", lambda rate: f"@{float(rate[1]) / k:.10g}", kind)
            for kind in wanted.electrical
        ),
        lines=tuple(lines),
        storage_mbps=wanted.storage_mbps / k,
    )


def share(inventory: Path, how: str) -> None:
    """Have the running lab's packet switches share uplinks by `fifo` or `job`. Raises: as
    `emulated.ask`.
    """
    emulated.ask(inventory, "queue.share", share=how)


class RanksPriority:
    """Real-time priority for the ranks of a running lab. It ends with the connection, so with this
    process at the latest.
    """

    def __init__(self, inventory: Path) -> None:
        self._inventory = inventory
        self._conversation: emulated.Conversation | None = None

    def take(self, for_s: float) -> None:
        """Have the lab give it to all ranks that run now, for so long (s) at most. Raises: as
        `emulated.ask`.
        """
        self._conversation = self._conversation or emulated.Conversation(self._inventory)
        self._conversation.ask("priority", LONGEST_S, for_s=for_s)

    def give_back(self) -> Mapping[str, Sequence[str]]:
        """Have the lab take it back; return by host which programs had lost it before, and why.
        Raises: as `emulated.ask`.
        """
        conversation, self._conversation = self._conversation, None
        if conversation is None:
            return {}
        with closing(conversation):
            return dict(conversation.ask("priority", LONGEST_S, for_s=0)["lost"])


def set_switching_time(inventory: Path, ms: float) -> None:
    """Give every switch of the running lab this switching time (ms), and the inventory, from which
    the program knows it.

    Raises: as `emulated.ask`.
    """
    page = inventory / "devices.yml"
    text = page.read_text(encoding="utf-8")
    fresh = _SETTLE.sub(rf"\g<1>{ms / 1e3:g}", text)
    if fresh != text:
        page.write_text(fresh, encoding="utf-8")
    for device in emulated.ask(inventory, "status")["devices"]:
        emulated.ask(inventory, "settle", device=device, s=ms / 1e3)
