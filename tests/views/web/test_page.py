"""The page in a real browser: headless Chromium, driven by Playwright."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from optics import CrossConnect, Port
from orchestrator.hosts import Heartbeat
from orchestrator.telemetry.progress import Silent
from orchestrator.telemetry.recorder import Recorder
from tests.views.web.conftest import ROOT, LabWriter
from tests.views.web.serving import Served, served
from tests.views.web.test_carried import carry
from tests.views.web.test_slots import begin, scheduled
from tests.views.web.test_training import scene

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(
        CHROMIUM is None,
        reason="Chromium is not installed (scripts/install-deps chromium): the page was not opened",
    ),
]
RING = ROOT / "examples" / "ring-12.json"
expect.set_options(timeout=20_000)
LEAST_PX = 100
LIT = '.arc[data-state="lit"]'
BEAT = Heartbeat("gpu01", "running", None, 7, "exchange", 30.0, ())
_SHOWN = re.compile("ERR_CONNECTION|ERR_INCOMPLETE|403")
"""A browser's own words for a server that is away and for a key that was refused: the page tells
both itself.
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        # tests run as root
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


@asynccontextmanager
async def opened(browser: Browser, at: Served, **more: object) -> AsyncIterator[Page]:
    """The page, in a window of its own; whatever it complains of, or asks another server for, fails
    the test.
    """
    trouble: list[str] = []
    context = await browser.new_context(viewport={"width": 1280, "height": 800}, **more)  # type: ignore[arg-type]
    page = await context.new_page()
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on(
        "console",
        lambda line: (
            trouble.append(line.text)
            if line.type == "error" and not _SHOWN.search(line.text)
            else None
        ),
    )
    page.on(
        "request",
        lambda request: (
            trouble.append(request.url) if not request.url.startswith((at.url, "data:")) else None
        ),
    )
    try:
        await page.goto(at.url)
        await expect(page.locator("#link")).to_have_text("live")
        yield page
    finally:
        await context.close()
    assert not trouble


async def test_an_empty_lab_says_what_to_do(browser: Browser, lab_writer: LabWriter) -> None:
    async with served(lab_writer) as at, opened(browser, at) as page:
        await expect(page.locator("#nothing")).to_contain_text("testbed up --topology")
        await expect(page.locator("#waterfall")).to_contain_text("Nothing was moved yet")
        await expect(page.locator("#iterations .empty")).to_be_visible()
        await expect(page.locator("#run")).to_have_text("no run yet")
        assert await page.locator(".arc").count() == 0


async def test_circuits_go_dark_and_others_light_up_while_one_looks(
    browser: Browser, lab_writer: LabWriter
) -> None:
    lab_writer.up()
    async with served(lab_writer) as at, opened(browser, at) as page:
        await expect(page.locator(LIT)).to_have_count(24)
        await expect(page.locator("#stat-lit")).to_have_text("48 / 48")
        run = lab_writer.run(plan="next\u202e<b>")
        old, new = (CrossConnect(Port("ocs1", "1"), Port("ocs1", to)) for to in ("18", "19"))
        step = run.plan("device", "ocs1", "-1 +1", {"remove": ["1->18"], "add": ["1->19"]})
        step.begin()
        lab_writer.store.own(lab_writer.tenancy, run.id, [new])
        await expect(page.locator('[data-circuit="gpu01:p1|gpu02:p1"]')).to_have_attribute(
            "data-state", "dark"
        )
        await expect(page.locator('[data-circuit="gpu01:p1|gpu03:p1"]')).to_have_attribute(
            "data-state", "making"
        )
        await expect(page.locator('[data-device="ocs1"] .phase')).to_contain_text("dark")
        await expect(page.locator("#run")).to_contain_text("switch ocs1: up next")
        lab_writer.store.disown(lab_writer.tenancy, [old])
        step.end()
        await expect(page.locator('[data-circuit="gpu01:p1|gpu03:p1"]')).to_have_attribute(
            "data-state", "lit"
        )
        lab_writer.move(run)
        run.finish("ok")
        await expect(page.locator("#stat-dark")).to_have_text("64 ms")
        await expect(page.locator("#waterfall .name", has_text="ocs1 switch")).to_be_visible()
        await expect(page.locator("#news")).to_contain_text("72 circuits moved")
        # words of others are text
        await expect(page.locator("#news")).to_contain_text("<b> begins")
        assert await page.locator("main b:not(.figures b)").count() == 0
        at.page.watcher.picture.carrier("gpu03:p2", 4e12, False)
        await expect(page.locator('.arc[data-state="lost"]')).to_have_count(1)
        await expect(page.locator("#announced")).to_contain_text("lost its light")


async def test_a_turn_is_in_words_above_the_curve_and_a_slow_iteration_in_the_list(
    browser: Browser, lab_writer: LabWriter
) -> None:
    launch = lab_writer.up()
    async with served(lab_writer) as at, opened(browser, at) as page:
        await expect(page.locator("#ring-change")).to_be_hidden()
        scene(lab_writer, at.page.watcher, launch=launch)
        paused = "job lost 96 ms: 60 dark, 4 commit, 32 boundary; iteration 212 -> 172 ms"
        await expect(page.locator("#ring-change")).to_contain_text(paused)
        await expect(page.locator("#ring-change")).to_have_attribute(
            "title", "ddp, after iteration 30, worst rank 71 ms"
        )
        await expect(page.locator("#news")).to_contain_text(
            "iteration 30 took 310 ms, usually 201: dark 60, commit 4, boundary 45"
        )
        await page.set_viewport_size({"width": 390, "height": 844})
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        await page.reload()
        await expect(page.locator("#ring-change")).to_contain_text("▼")


async def test_slots_light_up_in_turn_also_on_a_phone_and_looks_of_an_adapter_are_bars(
    browser: Browser, lab_writer: LabWriter
) -> None:
    with scheduled(lab_writer) as (journal, _, _):
        async with served(lab_writer) as at, opened(browser, at) as page:
            for slot in (0, 1):
                begin(journal, slot)
                await expect(page.locator('.slot[data-now="true"]')).to_have_text(str(slot))
                await expect(page.locator(LIT)).to_have_count(3)
                await expect(page.locator('.arc[data-state="waits"]')).to_have_count(4)
            await expect(page.locator("#slots-message")).to_contain_text(
                "slot 1 of 3, cycle 0, duty 0.890"
            )
            begin(journal, 2, lit_ms=970.0)
            await expect(page.locator('.slot[data-late="true"]')).to_have_text("1")
            for what, gain in (("changed", 2.5), ("skipped", 1.02)):
                journal.point(
                    "adapt",
                    {"plan": "ring_changes", "what": what},
                    {"iteration": 3, "gain": gain, "why": "gain"},
                )
            journal.flush()
            await expect(page.locator("#adapt .look")).to_have_count(2)
            await expect(page.locator('#adapt .look[data-what="changed"]')).to_have_attribute(
                "title", "iteration 3: circuits changed, gain 2.50"
            )
            await page.set_viewport_size({"width": 390, "height": 844})
            assert await page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_what_knows_the_traffic_has_marks_that_fit_a_phone_and_the_tapped_hosts_are_seen(
    browser: Browser, lab_writer: LabWriter
) -> None:
    carry(lab_writer.journal(lab_writer.up()))
    async with served(lab_writer) as at, opened(browser, at) as page:
        await expect(page.locator("#carried .mark")).to_have_count(6)
        await expect(page.locator("#copies .copy")).to_have_count(2)
        await expect(page.locator('[data-role="follower"]')).to_have_attribute("data-host", "gpu07")
        await expect(page.locator('#carried .cell[data-verdict="flagged"]')).to_have_count(1)
        assert (await page.locator(".drawing").bounding_box() or {"height": 0})[
            "height"
        ] > 2 * LEAST_PX
        await page.set_viewport_size({"width": 390, "height": 844})
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_ranks_have_a_key_and_leave_the_curve_of_iterations_its_room(
    browser: Browser, lab_writer: LabWriter
) -> None:
    with lab_writer.watcher() as watcher:
        run, _ = scene(lab_writer, watcher)
    journal = lab_writer.journal(run)
    for rank, ms in (("gpu01", 20.0), ("gpu02", 90.0)):
        times = {
            "iter": 49,
            "iter_ms": 100.0,
            "compute_ms": ms,
            "exposed_ms": 100.0 - ms,
            "wait_ms": 1.0,
        }
        journal.point("rank", {"job": "ddp", "rank": rank}, times)
    journal.flush()
    async with served(lab_writer) as at, opened(browser, at) as page:
        await expect(page.locator("#ranks .rank")).to_have_count(2)
        await expect(page.locator("#ranks-message")).to_contain_text("slowest gpu02")
        await expect(page.locator(".parts")).to_be_visible()
        assert await page.locator("#iterations").evaluate("box => box.clientHeight") >= LEAST_PX


async def test_keys_do_what_buttons_do_and_the_theme_stays(
    browser: Browser, lab_writer: LabWriter
) -> None:
    lab_writer.up()
    async with (
        served(lab_writer) as at,
        opened(browser, at, color_scheme="dark", reduced_motion="reduce") as page,
    ):
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await page.keyboard.press("t")
        await expect(page.locator("html")).to_have_attribute("data-theme", "light")
        await page.reload()
        await expect(page.locator("html")).to_have_attribute("data-theme", "light")
        await expect(page.locator(LIT)).to_have_count(24)
        await page.keyboard.press("2")
        await expect(page.locator('[data-device="ocs2"]')).to_have_attribute("aria-pressed", "true")
        await expect(page.locator(".arc.off")).to_have_count(18)
        await page.keyboard.press("2")
        await expect(page.locator(".arc.off")).to_have_count(0)
        await page.keyboard.press("b")
        await expect(page.locator("section.move")).to_be_hidden()
        await page.keyboard.press("b")
        await page.keyboard.press("?")
        await expect(page.locator("#help-dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator("#help-dialog")).to_be_hidden()
        await page.keyboard.press("-")
        await expect(page.locator("#announced")).to_have_text("charts over 10 minutes")
        focused = set()
        for _ in range(12):
            await page.keyboard.press("Tab")
            focused.add(
                await page.evaluate(
                    "document.activeElement.id || document.activeElement.dataset.device || ''"
                )
            )
        assert {"theme", "help", "ocs1", "ocs4", "news"} <= focused
        assert (
            await page.evaluate(
                "getComputedStyle(document.querySelector('.arc')).transitionDuration"
            )
            == "0s"
        )


async def test_the_button_is_dead_without_a_key_and_asks_before_it_does_anything(
    browser: Browser, lab_writer: LabWriter
) -> None:
    lab_writer.up()
    async with served(lab_writer, RING) as at, opened(browser, at) as page:
        await expect(page.locator("#safe")).to_be_disabled()
        await page.keyboard.press("s")
        await expect(page.locator("#announced")).to_contain_text("Only with a key")
        await page.goto(f"{at.url}#key={at.keys.once}")
        await expect(page.locator("#safe")).to_be_enabled()
        assert "key" not in page.url
        await page.keyboard.press("s")
        await expect(page.locator("#safe-message")).to_contain_text("ring-12")
        await expect(page.locator("#safe-message")).to_contain_text(
            "A job that runs takes over its next rings while it runs"
        )
        await page.keyboard.press("Escape")
        await expect(page.locator("#safe-dialog")).to_be_hidden()
        assert at.page.safe.state == "ready"
        await page.keyboard.press("s")
        await page.keyboard.press("Enter")
        await expect(page.locator("#safe")).to_have_attribute("data-state", "failed")
        await expect(page.locator("#banner")).to_contain_text("did not come up")
        await expect(page.locator("#banner")).to_contain_text("E-")
        await page.reload()
        await expect(page.locator("#safe")).to_be_enabled()
        async with opened(browser, at) as other:
            await other.goto(f"{at.url}#key=wrong-key")
            await expect(other.locator("#banner")).to_contain_text("this key is used or unknown")
            await expect(other.locator("#safe")).to_be_disabled()


async def test_the_page_goes_on_when_the_server_was_started_anew(
    browser: Browser, lab_writer: LabWriter
) -> None:
    lab_writer.up()
    async with served(lab_writer, RING) as first:
        page_of = opened(browser, first)
        page = await page_of.__aenter__()
        await page.goto(f"{first.url}#key={first.keys.once}")
        await expect(page.locator("#safe")).to_be_enabled()
    await expect(page.locator("#link")).to_have_attribute("data-state", "lost")
    await expect(page.locator("#banner")).to_contain_text("Is testbed ui still running?")
    lab_writer.run(plan="meanwhile").finish("ok")
    async with served(lab_writer, RING, first.port):
        await expect(page.locator("#link")).to_have_text("live")
        await expect(page.locator("#run")).to_contain_text("meanwhile")
        await expect(page.locator("#banner")).to_be_hidden()
        await expect(page.locator("#safe")).to_be_disabled()
        await page_of.__aexit__(None, None, None)


async def test_of_a_lab_at_rest_the_curves_end_where_the_last_ones_did(
    browser: Browser, lab_writer: LabWriter
) -> None:
    run = lab_writer.up()
    journal = lab_writer.journal(run)
    for n in range(20):
        at_ns = journal.now_ns() - (3600 - n) * 10**9
        journal.point(
            "iteration", {"job": "ddp", "workload": "train"}, {"iter": n, "iter_ms": 40.0}, at_ns
        )
    journal.flush()
    async with served(lab_writer) as at, opened(browser, at) as page:
        await expect(page.locator("#iterations-title")).to_contain_text(", until ")
        await expect(page.locator("#iterations .empty")).to_be_hidden()
        await expect(page.locator("#traffic .empty")).to_be_visible()
        journal.point(
            "iteration", {"job": "ddp", "workload": "train"}, {"iter": 20, "iter_ms": 40.0}
        )
        journal.flush()
        await expect(page.locator("#iterations-title")).not_to_contain_text("until")


async def test_at_every_size_nothing_is_cut_off_and_letters_can_be_read(
    browser: Browser, lab_writer: LabWriter
) -> None:
    run = lab_writer.up()
    lab_writer.move(run)
    async with served(lab_writer) as at, opened(browser, at) as page:
        await expect(page.locator(LIT)).to_have_count(24)
        for width, height, scrolls in (
            (1920, 1080, False),
            (1280, 720, False),
            (1024, 768, False),
            (420, 900, True),
        ):
            await page.set_viewport_size({"width": width, "height": height})
            wide, tall = await page.evaluate(
                "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
            )
            assert wide <= width and (scrolls or tall <= height), (width, height, wide, tall)
            smallest = await page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)")
            assert smallest >= 12.5


async def test_the_phase_at_work_has_a_bar_that_grows_and_figures_stay_until_the_next_ones_are_there(
    browser: Browser, lab_writer: LabWriter
) -> None:
    moved = lab_writer.up()
    lab_writer.move(moved)
    run = lab_writer.run(plan="next")
    async with served(lab_writer) as at, opened(browser, at) as page:
        growing = page.locator("#waterfall .bar.growing")
        journal = lab_writer.journal(run)
        with Recorder(Silent(), journal).phase("observe"):
            await expect(growing).to_have_count(1)
            await expect(page.locator("#move-title")).to_contain_text("Now: up next")
            await expect(page.locator("#run")).to_have_text("observe: up next")
        recording = Recorder(Silent(), journal).phase("launch")
        recording.__enter__()
        await expect(page.locator("#waterfall .name", has_text="launch")).to_be_visible()
        await expect(page.locator("#run")).to_have_text("launch: up next")
        await expect(growing).to_have_count(1)
        reported = page.locator("#waterfall .name", has_text="launch").locator(
            "xpath=following-sibling::span[1]"
        )
        before = await reported.inner_text()
        await expect(reported).not_to_have_text(before)
        await expect(page.locator("#stat-dark")).to_have_text("64 ms")
        await expect(page.locator("#stat-dark")).to_have_class("old")
        recording.__exit__(None, None, None)
        lab_writer.move(run, dark_ms=71.0)
        run.finish("ok")
        await expect(page.locator("#stat-dark")).to_have_text("71 ms")
        await expect(page.locator("#stat-dark")).not_to_have_class("old")
        await expect(growing).to_have_count(0)
        failed = lab_writer.run(plan="bad")
        lab_writer.journal(failed).phase(
            "switch", now := journal.now_ns(), now + 10**8, kind="device", subject="ocs1"
        )
        await expect(page.locator("#stat-dark")).to_have_class("old")
        failed.finish("rolled-back")
        await expect(page.locator("#move-title")).to_contain_text("Last move: up bad")
        await expect(page.locator("#stat-dark")).to_have_text("–")


async def test_a_job_that_has_finished_is_said_to_be_so_and_no_rank_is_silent(
    browser: Browser, lab_writer: LabWriter
) -> None:
    launch = lab_writer.up()
    job = lab_writer.launched(launch, time.time() * 1e3 - 60_000)
    async with served(lab_writer) as at, opened(browser, at) as page:
        scene(lab_writer, at.page.watcher, launch=launch, job=False)
        at.page.watcher.picture.ranks.heard(launch.id, [BEAT], time.time() * 1e3)
        await expect(page.locator("#ranks .rank")).to_have_count(1)
        await expect(page.locator("#ring-change")).to_be_visible()
        await expect(page.locator("#job")).to_be_hidden()
        lab_writer.store.set_job(job, "finished", ended=True)
        await expect(page.locator("#job")).to_have_text("job ddp finished")
        await expect(page.locator("#ranks")).to_be_hidden()
        await expect(page.locator("#ring-change")).to_be_hidden()
        await expect(page.locator("#stat-iteration")).to_have_text("–")


async def test_what_happens_to_many_circuits_one_by_one_is_one_line(
    browser: Browser, lab_writer: LabWriter
) -> None:
    lab_writer.up()
    async with served(lab_writer) as at, opened(browser, at) as page:
        await expect(page.locator(LIT)).to_have_count(24)
        for host in range(1, 13):
            for port in range(1, 5):
                at.page.watcher.picture.carrier(f"gpu{host:02}:p{port}", 4e12 + host, False)
        await expect(page.locator("#news")).to_contain_text(
            "ocs1, ocs2, ocs3, ocs4: 48 circuits lost their light"
        )
        await expect(page.locator("#news li", has_text="light")).to_have_count(1)
        at.page.watcher.picture.carrier("gpu03:p2", 4e12 + 60_000, True)
        await expect(page.locator("#news li", has_text="carries light")).to_have_count(1)


async def test_on_a_phone_the_waterfall_is_all_there_and_axes_have_their_labels(
    browser: Browser, lab_writer: LabWriter
) -> None:
    run = lab_writer.up()
    journal = lab_writer.move(run)
    for n in range(20):
        at_ns = journal.now_ns() - (20 - n) * 10**9
        journal.point(
            "iteration",
            {"job": "ddp", "workload": "train"},
            {"iter": n, "iter_ms": 240.0 + n},
            at_ns,
        )
    journal.flush()
    labels: list[str] = []
    async with served(lab_writer) as at, opened(browser, at) as page:
        await page.add_init_script(
            "const kind = CanvasRenderingContext2D.prototype, real = kind.fillText; window.drawn = []; window.tops = {};"
            "kind.fillText = function (text, x, y) { drawn.push(text); tops[text] = y; return real.call(this, text, x, y); }"
        )
        await page.set_viewport_size({"width": 390, "height": 844})
        await page.reload()
        await expect(page.locator("#waterfall .name", has_text="ocs1 switch")).to_be_visible()
        panel = await page.locator("#waterfall").bounding_box()
        last = await page.locator("#waterfall .figures").bounding_box()
        assert panel is not None and last is not None and panel["height"] > 60
        assert last["y"] + last["height"] <= panel["y"] + panel["height"] + 1
        assert await page.locator("#waterfall .axis").first.locator(".tick").count() >= 3
        await expect(page.locator("#iterations .empty")).to_be_hidden()
        labels = await page.evaluate("[...new Set(drawn)]")
        assert await page.evaluate("tops['dark 64 ms'] < tops['300'] - 5"), (
            "the mark's label is on the grid"
        )
        heights = await page.evaluate(
            "[...document.querySelectorAll('.tools > *')].map((e) => e.getBoundingClientRect().height)"
        )
        assert max(heights) < 45, "a button's words are broken"
    assert len([text for text in labels if re.fullmatch(r"\d\d:\d\d:\d\d", text)]) >= 2, labels
    assert {"0", "100", "200"} <= set(labels), labels


async def test_lit_in_the_legend_has_no_colour_of_a_device(
    browser: Browser, lab_writer: LabWriter
) -> None:
    lab_writer.up()
    async with served(lab_writer) as at:
        for scheme in ("light", "dark"):
            async with opened(browser, at, color_scheme=scheme) as page:
                await expect(page.locator(LIT)).to_have_count(24)
                lit = await page.evaluate(
                    "getComputedStyle(document.querySelector('.key.lit')).borderTopColor"
                )
                parts = [int(part) for part in re.findall(r"\d+", lit)]
                assert max(parts) - min(parts) < 40, f"{lit} has a hue of its own"
