"""Dashboards drawn by Grafana's own library (draw/) in headless Chromium: what a panel looks like,
and the texts that are seen in it.

Types of panels the library does not draw are boxes with their data as text. Places of panels are
by Grafana's rules, not by its code.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Route, sync_playwright

from tests.dashboards.grafana import filled

DRAW = Path(__file__).with_name("draw")
LIBRARY = DRAW / "node_modules" / "@grafana" / "ui"
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FONTS = {
    "public/fonts/inter/Inter-Regular.woff2": "inter-latin-400-normal.woff2",
    "public/fonts/inter/Inter-Medium.woff2": "inter-latin-500-normal.woff2",
}
"""Grafana's font is not in its library's package."""
NOT_DRAWN = {"barchart", "histogram", "nodeGraph", "state-timeline", "status-history", "xychart"}
"""Types of panels that are in Grafana alone, not in its library."""
ADDRESS = "http://dashboards.invalid/"
WIDTH, HEIGHT = 1600, 900


@dataclass(frozen=True)
class Seen:
    """What is seen of one panel. canvas: the texts on its canvases, texts: all others; cut: texts
    that do not fit, inked: the share of the canvas that is drawn on.
    """

    panel: Mapping[str, Any]
    canvas: Sequence[str]
    texts: Sequence[str]
    cut: Sequence[str]
    inked: float


def build() -> None:
    """Bundle the library and our page."""
    npm = Path(sys.executable).with_name("npm")
    done = subprocess.run(
        [npm, "run", "--silent", "build"],
        cwd=DRAW,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # tests run as root
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def answered(route: Route) -> None:
    """A file of ours, or an icon or a font of the library; there is no server."""
    name = route.request.url.removeprefix(ADDRESS)
    modules = DRAW / "node_modules"
    if name in FONTS:
        path = modules / "@fontsource" / "inter" / "files" / FONTS[name]
    elif name.startswith("public/build/"):
        path = LIBRARY / "dist" / name.replace("/build", "")
    else:
        path = DRAW / name
    route.fulfill(path=path) if path.is_file() else route.fulfill(status=404)


@contextmanager
def drawn(
    browser: Browser,
    dashboard: Mapping[str, Any],
    begin_ms: int,
    end_ms: int,
    ask: Callable[[str], dict[str, Any]],
) -> Iterator[tuple[Page, list[Seen]]]:
    """The page with a dashboard, and what is seen of each panel. What the page complains of
    fails.
    """
    rows = [
        {
            **row,
            "fieldConfig": {"defaults": {}, "overrides": []},
            "transformations": [],
            "frames": [],
        }
        for row in dashboard["panels"]
        if row["type"] == "row"
    ]
    panels = list(filled(dashboard, begin_ms, end_ms, ask))
    with browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}) as context:
        page = context.new_page()
        trouble: list[str] = []
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on(
            "console",
            lambda line: trouble.append(line.text) if line.type == "error" else None,
        )
        page.route("**", answered)
        page.goto(f"{ADDRESS}page.html")
        seen = page.evaluate(
            "([panels, range]) => draw(panels, range)", [panels + rows, [begin_ms, end_ms]]
        )
        assert not trouble, trouble
        yield (
            page,
            [Seen(panel, **seen[str(panel["id"])]) for panel in panels],
        )
