"""How long from an event in a journal to the changed picture in `testbed ui`, in a real browser;
and what the page weighs.

`testbed ui` runs as a process; headless Chromium has its page open. Meanwhile 48 ports are sampled
ten times a second into the same journal. Each round writes a point that says a circuit is dark, and
takes the time at which the browser began to draw the frame behind the one with the change in it:
both clocks are this machine's.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.harness import verdict
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import target
from orchestrator.session import load_lab
from orchestrator.settings import Settings, load
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.store import Store
from orchestrator.telemetry import Journal

if TYPE_CHECKING:
    from playwright.sync_api import Page

LIMIT_MS = 250.0
LIMIT_BYTES = 500_000
ROUNDS = 60
CALM_S = 0.55
"""A dark circuit is shown as dark for 0.4 s at least; then it may be lit again."""
ROOT = Path(__file__).parents[1]
OBSERVE = """
window.drawn = [];
const arc = document.querySelector('[data-circuit="gpu01:p1|gpu02:p1"]');
new MutationObserver(() => {
  const state = arc.dataset.state;
  const seen = () => window.drawn.push([state, performance.timeOrigin + performance.now()]);
  requestAnimationFrame(() => requestAnimationFrame(seen));
}).observe(arc, { attributes: true, attributeFilter: ["data-state"] });
"""


def prepare(folder: Path) -> tuple[Settings, str]:
    """A store in which a plan is up on the emulated lab, which does not run; return its settings
    and the run's id.
    """
    os.environ.update(
        {f"TESTBED_{name}_DIR": str(folder / name.lower()) for name in ("DATA", "STATE", "LOCK")}
    )
    os.environ["TESTBED_INVENTORY"] = str(ROOT / "inventory" / "emulated")
    settings = load()
    lab = load_lab(settings.inventory)
    text = (ROOT / "examples" / "topoopt-12.json").read_text()
    goal = target(
        read_plan(text, "topoopt-12", lab), lab, dict.fromkeys(lab.devices, frozenset()), ()
    )
    with Store(settings.store_path) as store:
        run = store.new_run("up", key_of(lab), plan_name="topoopt-12", owner=settings.owner)
        store.own(tenancy_of(lab, settings), run.id, frozenset().union(*goal.wanted.values()))
        run.finish("ok")
    return settings, run.id


def sample(journal: Journal, stop: threading.Event) -> None:
    """Counters of 48 ports, ten times a second."""
    sent = 0
    while not stop.wait(0.1):
        sent += 300_000
        for n in range(48):
            tags = {"host": f"gpu{n // 4 + 1:02}", "port": f"p{n % 4 + 1}", "layer": "nic"}
            journal.point("port", tags, {"rx_bytes": sent, "tx_bytes": sent, "drops": 0, "oper": 1})


def delays(url: str, journal: Journal, rounds: int) -> tuple[list[float], int]:
    """Milliseconds from each point to its picture, and the bytes of everything the page loaded."""
    from playwright.sync_api import sync_playwright

    found: list[float] = []
    weight = 0
    with sync_playwright() as playwright:
        path = (
            shutil.which("chromium")
            or shutil.which("chromium-browser")
            or shutil.which("google-chrome")
        )
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1920, "height": 1080})
        loaded = []
        page.on("requestfinished", lambda request: loaded.append(request))
        page.goto(url)
        page.wait_for_selector('.arc[data-state="lit"]', state="attached")
        time.sleep(1.0)
        weight = sum(
            len(request.response().body()) for request in loaded if "events" not in request.url
        )
        page.evaluate(OBSERVE)
        for n in range(rounds):
            time.sleep(CALM_S + (n % 10) * 0.0041)  # at every place between two polls of the server
            began = time.time()
            journal.point("circuit", {"ocs": "ocs1", "id": "1"}, {"state": "dark"})
            found.append(drawn(page, "dark") - began * 1e3)
            time.sleep(CALM_S)
            journal.point("circuit", {"ocs": "ocs1", "id": "1"}, {"state": "up"})
            drawn(page, "lit")
        browser.close()
    return found, weight


def drawn(page: Page, wanted: str) -> float:
    """Wall ms at which the circuit was drawn in another state, which must be the wanted one."""
    give_up = time.monotonic() + 10
    while time.monotonic() < give_up:
        if (found := page.evaluate("window.drawn.shift() ?? null")) is not None:
            assert found[0] == wanted, found
            return float(found[1])
        time.sleep(0.02)
    raise TimeoutError(f"no change to {wanted} was drawn in 10 s")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        settings, run = prepare(Path(folder))
        command = [sys.executable, "-m", "orchestrator.cli.main", "ui", "--port", "0", "--passive"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        stop = threading.Event()
        try:
            assert server.stdout is not None
            url = re.findall(r"http://\S+", server.stdout.readline())[0]
            with Journal(settings.run_dir(run), run, "emulated") as journal:
                sampler = threading.Thread(target=sample, args=(journal, stop))
                sampler.start()
                try:
                    found, weight = delays(url, journal, rounds)
                finally:
                    stop.set()
                    sampler.join()
        finally:
            server.terminate()
            server.wait(20)
    value, worst = statistics.median(found), statistics.quantiles(found, n=20)[18]
    print(
        f"event to picture  median {value:6.1f} ms   95 % within {worst:6.1f} ms   slowest {max(found):6.1f} ms   of {len(found)}"
    )
    print(f"page              {weight} bytes of {LIMIT_BYTES}, ratio {weight / LIMIT_BYTES:.3f}")
    return verdict(
        "ui_latency",
        value,
        "ms",
        LIMIT_MS,
        "at most",
        also=weight <= LIMIT_BYTES,
        p95_ms=round(worst, 1),
        page_bytes=weight,
        page_limit_bytes=LIMIT_BYTES,
        page_ratio=round(weight / LIMIT_BYTES, 4),
    )


if __name__ == "__main__":
    sys.exit(main())
