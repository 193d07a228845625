"""The page's server over real sockets."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from orchestrator.views.web import server
from orchestrator.views.web.server import STATIC, Hub
from tests.views.web.conftest import ROOT, LabWriter
from tests.views.web.serving import served, stream


async def test_the_page_is_whole_small_its_own_and_says_what_it_may_load(
    lab_writer: LabWriter,
) -> None:
    async with served(lab_writer) as at, httpx.AsyncClient(base_url=at.url) as client:
        total = 0
        for name in ("", *STATIC):
            answer = await client.get(name)
            total += len(answer.content)
            assert answer.status_code == 200
            policy = answer.headers["content-security-policy"]
            assert (
                "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
            )
            assert (
                answer.headers["x-content-type-options"] == "nosniff"
                and "access-control-allow-origin" not in answer.headers
            )
            again = await client.get(name, headers={"if-none-match": answer.headers["etag"]})
            assert again.status_code == 304 and not again.content
            if name.endswith((".html", ".css")) or (name.endswith(".js") and "vendor" not in name):
                assert "https://" not in answer.text and "//cdn" not in answer.text
        assert total < 500_000
        for name in ("nothing.js", "static/app.js", "../server.py", "vendor/", "%2e%2e/doors.py"):
            assert (await client.get(name)).status_code == 404


async def test_a_stream_begins_with_everything_and_goes_on_with_what_changes(
    lab_writer: LabWriter,
) -> None:
    lab_writer.up()
    async with served(lab_writer) as at, stream(at.url) as events:
        name, whole = await anext(events)
        assert (
            name == "whole"
            and len(whole["circuits"]) == 48
            and whole["plan"][0]["name"] == "topoopt-12"
        )
        run = lab_writer.run(plan="next")
        journal = lab_writer.move(run)
        seen: dict[str, object] = {}
        while "move" not in seen or "marks" not in seen or "run" not in seen:
            name, change = await asyncio.wait_for(anext(events), 10)
            assert name == "change"
            seen |= change
        journal.point(
            "circuit", {"ocs": "ocs1", "id": "1"}, {"state": "dark"}, journal.now_ns() + 10**7
        )
        while "states" not in change:
            name, change = await asyncio.wait_for(anext(events), 10)
        assert change["states"] == {**change["states"], "gpu01:p1->gpu02:p1": "dark"}


FOREIGN = [
    ({}, 200),
    ({"host": "evil.example"}, 403),
    ({"host": "evil.example:PORT"}, 403),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "http://127.0.0.1:1"}, 403),
    ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}, 403),
    ({"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
    ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
    ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
]


async def test_foreign_names_and_foreign_pages_may_not_even_look(lab_writer: LabWriter) -> None:
    async with served(lab_writer) as at, httpx.AsyncClient(base_url=at.url) as client:
        for headers, status in FOREIGN:
            sent = {name: value.replace("PORT", str(at.port)) for name, value in headers.items()}
            for path in ("picture", ""):
                assert (await client.get(path, headers=sent)).status_code == status, (path, headers)


async def test_the_button_needs_a_key_from_the_printed_address_and_its_own_page(
    lab_writer: LabWriter,
) -> None:
    plan = ROOT / "examples" / "ring-12.json"
    async with served(lab_writer, plan) as at, httpx.AsyncClient(base_url=at.url) as client:
        assert (await client.post("enter", json={"key": at.keys.once})).status_code == 403, (
            "no origin"
        )
        for body in (
            b"",
            b"[]",
            b"{",
            b'{"key": 7}',
            b'{"key": "' + b"x" * 9000 + b'"}',
            b'{"key": "\\ud800"}',
            b"[" * 3000,
        ):
            assert (await client.post("enter", content=body, headers=at.origin)).status_code == 403
        once = at.keys.once
        entered = await client.post("enter", json={"key": once}, headers=at.origin)
        token = entered.json()["token"]
        assert (
            await client.post("enter", json={"key": once}, headers=at.origin)
        ).status_code == 403
        assert (await client.get("safe")).status_code == 405 or (
            await client.get("safe")
        ).status_code == 404
        for given in (
            {},
            {"authorization": "Bearer x"},
            {"authorization": token},
            {"authorization": f"Bearer {once}"},
        ):
            refused = await client.post("safe", headers={**at.origin, **given})
            assert refused.status_code == 401 and "key" in refused.json()["message"]
        assert (
            await client.post("safe", headers={"authorization": f"Bearer {token}"})
        ).status_code == 403, "no origin"
        assert at.page.safe.state == "ready"


async def test_a_press_is_a_run_of_its_own_and_what_came_of_it_is_said(
    lab_writer: LabWriter,
) -> None:
    plan = ROOT / "examples" / "ring-12.json"
    async with (
        served(lab_writer, plan) as at,
        httpx.AsyncClient(base_url=at.url) as client,
        stream(at.url) as events,
    ):
        entered = await client.post("enter", json={"key": at.keys.once}, headers=at.origin)
        headers = {**at.origin, "authorization": f"Bearer {entered.json()['token']}"}
        assert (await client.post("safe", headers=headers)).status_code == 202
        again = await client.post("safe", headers=headers)
        assert again.status_code == 409 and "under way" in again.json()["message"]
        states: list[str] = []
        deadline = time.monotonic() + 60
        text = ""
        while "failed" not in states and time.monotonic() < deadline:
            _, change = await asyncio.wait_for(anext(events), 60)
            if "safe" in change:
                states.append(change["safe"]["state"])
                text = change["safe"]["message"]
        assert states[-2:] == ["running", "failed"], "there is no lab: nobody answers"
        assert text.startswith("E-") and "next:" in text
        assert (await client.post("safe", headers=headers)).status_code == 202, (
            "it may be tried again"
        )


async def test_without_a_safe_plan_a_key_presses_nothing(lab_writer: LabWriter) -> None:
    async with served(lab_writer) as at, httpx.AsyncClient(base_url=at.url) as client:
        entered = await client.post("enter", json={"key": at.keys.once}, headers=at.origin)
        headers = {**at.origin, "authorization": f"Bearer {entered.json()['token']}"}
        answer = await client.post("safe", headers=headers)
        assert answer.status_code == 409 and "--safe-plan" in answer.json()["message"]


async def test_a_page_that_went_away_is_forgotten(
    lab_writer: LabWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEARTBEAT_S", 0.02)
    async with served(lab_writer) as at:
        async with stream(at.url) as events:
            await anext(events)
            assert len(at.page.hub) == 1
            assert (await anext(events))[0] == "heartbeat"
        for _ in range(500):
            if not len(at.page.hub):
                return
            await asyncio.sleep(0.01)
    raise AssertionError("its stream is still fed")


async def test_a_page_that_is_too_slow_gets_a_whole_picture_instead_of_all_it_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "WAITING", 3)
    hub = Hub()
    with hub.joined() as stream:
        queue = stream.queue
        for n in range(4):
            hub.publish(f"message {n}")
        assert [queue.get_nowait() for _ in range(queue.qsize())] == [""]
        hub.publish("message 5")
        assert queue.get_nowait() == "message 5"
    assert not len(hub)


async def test_what_cannot_be_read_is_said_and_does_not_end_the_page(
    lab_writer: LabWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(lab_writer) as at, stream(at.url) as events:
        await anext(events)

        def broken() -> int:
            raise OSError("disk I/O error")

        monkeypatch.setattr(at.page.watcher.store, "version", broken)
        _, change = await asyncio.wait_for(anext(events), 10)
        assert change["trouble"] == ["journals and store cannot be read: disk I/O error"]
        monkeypatch.undo()
        _, change = await asyncio.wait_for(anext(events), 10)
        assert change["trouble"] == []
