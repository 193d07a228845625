"""The report's page in a real browser: what a reader sees on a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.views.report.conftest import Typed
from tests.views.report.recorded import CROSSED, RING, Lab

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="Chromium is not installed (scripts/install-deps chromium): the page was not opened",
)
SMALLEST_LETTERS = """Math.min(...[...document.querySelectorAll('figure svg text')].filter((t) => t.textContent.trim())
    .map((t) => parseFloat(getComputedStyle(t).fontSize) * Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b)))"""
LINES = """[...document.querySelectorAll('td:first-child')].filter((c) => /^2026-/.test(c.textContent)).map((c) => {
    const text = document.createRange();
    text.selectNodeContents(c);
    return text.getBoundingClientRect().height / parseFloat(getComputedStyle(c).lineHeight);
})"""


@pytest.fixture
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # tests run as root
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_on_a_phone_figures_can_be_read_and_names_of_runs_are_not_broken(
    browser: Browser, typed: Typed, lab: Lab
) -> None:
    lab.up("ring", RING)
    lab.up("crossed", CROSSED, before=("ring", RING))
    lab.up("broken", RING, status="failed", message="ocs1: no answer", moved=False)
    lab.up("ring", RING, before=("crossed", CROSSED))
    for what in ("all", "last"):
        file = typed("experiment", "report", what, "--json").data["file"]
        with browser.new_context(viewport={"width": 390, "height": 844}) as context:
            page = context.new_page()
            page.goto(f"file://{file}")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            assert page.evaluate(SMALLEST_LETTERS) >= 8, what
            lines = page.evaluate(LINES)
            assert lines and max(lines) < 2, lines
