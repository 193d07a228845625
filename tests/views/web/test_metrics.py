"""The service `metrics`: what Prometheus reads is what the store and the journals say, and nobody
else's page reads it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as older

from optics import TestbedError
from optics.errors import StoreFailed
from orchestrator.cli import main
from orchestrator.session import load_lab
from orchestrator.store.keys import key_of
from orchestrator.store.light import add_light
from orchestrator.store.locks import locks_of
from orchestrator.store.records import LightPoint
from orchestrator.store.scope import Scope
from orchestrator.views.metrics.counted import DARK_S, MOST_JOBS
from orchestrator.views.metrics.families import FAMILIES, LabMetrics
from orchestrator.views.metrics.process import EXPORTER, ExporterState
from orchestrator.views.metrics.serving import Endpoint
from orchestrator.views.web.access import Names
from orchestrator.views.web.server import serve_page
from tests.house.repository import ROOT
from tests.kit.jobs import spec
from tests.views.web.conftest import LabWriter
from tests.views.web.test_commands import lines_until, started

OPENMETRICS = {
    "accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
}
"""As Prometheus asks."""


def samples(text: str, parse: Any = text_string_to_metric_families) -> dict[tuple[str, ...], float]:
    """Every sample by name and, in the order of their names, labels other than `lab`; all are of
    the one lab.
    """
    found = {}
    for family in parse(text):
        for sample in family.samples:
            assert sample.labels.pop("lab", "emulated") == "emulated"
            found[(sample.name, *(value for _, value in sorted(sample.labels.items())))] = (
                sample.value
            )
    return found


@asynccontextmanager
async def scraped(lab_writer: LabWriter) -> AsyncIterator[httpx.AsyncClient]:
    with lab_writer.watcher() as watcher, socket.create_server(("127.0.0.1", 0)) as listener:
        port, ready = listener.getsockname()[1], asyncio.Event()
        endpoint = Endpoint(
            LabMetrics(lab_writer.settings, watcher.store, watcher).families,
            Names("127.0.0.1", port),
        )
        serving = asyncio.create_task(serve_page(endpoint, listener, ready.set))
        await asyncio.wait_for(ready.wait(), 10)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
                yield client
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def now(metrics: LabMetrics) -> dict[tuple[str, ...], float]:
    from prometheus_client.openmetrics.exposition import generate_latest

    from orchestrator.views.metrics.serving import CollectedFamilies

    return samples(generate_latest(CollectedFamilies(metrics.families())).decode())


async def test_a_scrape_has_every_family_and_its_figures_are_those_of_store_and_journals(
    lab_writer: LabWriter,
) -> None:
    run = lab_writer.up()
    lab_writer.move(run, dark_ms=64.0)
    lab_writer.train(run, until_ms=time.time() * 1e3, count=40)
    lab_writer.store.add_job(lab_writer.tenancy, run.id, "ddp", spec(), "running")
    lab_writer.run().finish("failed")
    lab_writer.run("verify")
    lock = locks_of(lab_writer.lab, lab_writer.settings, lab_writer.store).take(
        "reservation", Scope(), "maintenance", for_s=3600
    )
    with lab_writer.watcher() as watcher:
        circuit = next(iter(watcher.picture.light.circuits.values()))
    points = [
        LightPoint(circuit.id, " ".join(circuit.path), at, 1.0, dbm, 2.0)
        for at, dbm in ((50.0, -9.0), (60.0, -1.5))
    ]
    other = LightPoint(circuit.id, "another path", 70.0, 1.0, 0.0, 2.0)
    add_light(lab_writer.store, lab_writer.key, run.id, [*points, other])
    async with scraped(lab_writer) as client:
        answer = await client.get("/metrics", headers=OPENMETRICS)
        plain = await client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith(
        "application/openmetrics-text; version=1.0.0"
    )
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert {name: family.type for name, family in families.items()} == {
        name: kind for name, (kind, _, _) in FAMILIES.items()
    }
    found = samples(answer.text)
    assert (
        sum(
            n
            for (name, *labels), n in found.items()
            if name == "testbed_circuits" and labels[1] == "lit"
        )
        == 48
    )
    assert found["testbed_circuits", "ocs1", "lost"] == 0
    assert found["testbed_circuit_power_dbm", circuit.id] == -1.5, (
        "the newest over the present path"
    )
    assert (
        found["testbed_circuit_margin_db", circuit.id] == 28.5
        and found["testbed_light_measured_timestamp_seconds",] == 60.0
    )
    assert (
        found["testbed_dark_seconds_bucket", "0.06"] == 0
        and found["testbed_dark_seconds_bucket", "0.075"] == 1
    )
    assert found["testbed_dark_seconds_count",] == 1 and found["testbed_dark_seconds_sum",] == 0.064
    assert (
        found["testbed_runs_total", "ok", "up"] == 1 == found["testbed_runs_total", "failed", "up"]
    )
    assert found["testbed_runs_running",] == 1 == found["testbed_jobs", "running"]
    assert (
        found["testbed_locks", "reservation", lock.state] == 1
        and found["testbed_locks", "run", "active"] == 0
    )
    assert found["testbed_job_iterations_total", "ddp"] == 40
    assert found["testbed_job_iteration_seconds_total", "ddp"] == pytest.approx(40 * 0.2 + 0.039)
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    old = samples(plain.text, older)
    assert (
        old.items()
        >= {k: v for k, v in found.items() if not k[0].startswith("testbed_build")}.items()
    )


def test_counters_take_in_what_is_added_once_and_never_become_less(lab_writer: LabWriter) -> None:
    first = lab_writer.up()
    lab_writer.train(first, until_ms=time.time() * 1e3, count=10)
    with lab_writer.watcher() as watcher:
        metrics = LabMetrics(lab_writer.settings, watcher.store, watcher)
        assert [now(metrics)["testbed_job_iterations_total", "ddp"] for _ in range(2)] == [10, 10]
        journal = lab_writer.settings.run_dir(first.id) / "telemetry" / "000.lp"
        with journal.open("ab") as file:
            file.write(b"iteration,job=ddp half a li")
        assert now(metrics)["testbed_job_iterations_total", "ddp"] == 10
        # cuts off what is torn
        lab_writer.train(first, until_ms=time.time() * 1e3, first=10, count=5)
        lab_writer.move(lab_writer.run(), dark_ms=5.0)
        found = now(metrics)
        assert (
            found["testbed_job_iterations_total", "ddp"] == 15
            and found["testbed_dark_seconds_bucket", "0.005"] == 1
        )
        journal.unlink()  # as `run list --prune` and `telemetry prune` do
        lab_writer.store.write("DELETE FROM runs WHERE id=?", (first.id,))
        found = now(metrics)
        assert (
            found["testbed_job_iterations_total", "ddp"] == 15
            and found["testbed_runs_total", "ok", "up"] == 1
        )


def test_every_result_of_a_verb_is_there_before_it_happens(lab_writer: LabWriter) -> None:
    """Prometheus takes the first value of a series for its beginning: an alert would miss the first
    failure.
    """
    lab_writer.run("verify").finish("ok")
    with lab_writer.watcher() as watcher:
        found = now(LabMetrics(lab_writer.settings, watcher.store, watcher))
    assert (
        found["testbed_runs_total", "ok", "verify"] == 1
        and found["testbed_runs_total", "failed", "verify"] == 0
    )
    assert found["testbed_runs_total", "rolled-back", "up"] == 0


def test_of_jobs_of_many_names_the_latest_are_shown(lab_writer: LabWriter) -> None:
    with lab_writer.journal(lab_writer.up()) as journal:
        for name in ["first", *(f"job{n}" for n in range(MOST_JOBS)), "first"]:
            journal.point(
                "iteration",
                {"job": name, "workload": "train"},
                {"iter": 1, "iter_ms": 2.0},
                journal.now_ns(),
            )
    with lab_writer.watcher() as watcher:
        found = now(LabMetrics(lab_writer.settings, watcher.store, watcher))
    names = [
        name
        for what, name in (key for key in found if len(key) == 2)
        if what == "testbed_job_iterations_total"
    ]
    assert (
        len(names) == MOST_JOBS
        and "job0" not in names
        and found["testbed_job_iterations_total", "first"] == 2
    )


def test_a_store_that_was_moved_away_is_not_read_on(lab_writer: LabWriter) -> None:
    lab_writer.up()
    with lab_writer.watcher() as watcher:
        metrics = LabMetrics(lab_writer.settings, watcher.store, watcher)
        now(metrics)
        lab_writer.settings.store_path.rename(lab_writer.settings.store_path.with_suffix(".old"))
        with pytest.raises(StoreFailed, match="removed or replaced"):
            metrics.families()


def test_a_damaged_line_is_counted_and_the_others_are_read(lab_writer: LabWriter) -> None:
    run = lab_writer.up()
    lab_writer.train(run, until_ms=time.time() * 1e3, count=2)
    journal = lab_writer.settings.run_dir(run.id) / "telemetry" / "000.lp"
    journal.write_bytes(b"iteration,job=\xff\n" + journal.read_bytes() + b"reconfig,x=y dark_ms=\n")
    with lab_writer.watcher() as watcher:
        found = now(LabMetrics(lab_writer.settings, watcher.store, watcher))
    assert (
        found["testbed_journal_unread_total",] == 2
        and found["testbed_job_iterations_total", "ddp"] == 2
    )


async def test_a_store_that_cannot_be_read_is_an_answer_that_prometheus_counts_as_down(
    lab_writer: LabWriter,
) -> None:
    lab_writer.up()
    async with scraped(lab_writer) as client:
        lab_writer.store.write("ALTER TABLE held RENAME TO gone")
        answer = await client.get("/metrics", headers=OPENMETRICS)
        assert answer.status_code == 503 and "held" in answer.text
        lab_writer.store.write("ALTER TABLE gone RENAME TO held")
        assert (await client.get("/metrics", headers=OPENMETRICS)).status_code == 200, (
            "it goes on by itself"
        )


async def test_foreign_names_pages_and_methods_are_refused(lab_writer: LabWriter) -> None:
    async with scraped(lab_writer) as client:
        port = client.base_url.port
        for headers in (
            {"host": f"evil.example:{port}"},
            {"origin": "http://evil.example"},
            {"sec-fetch-site": "cross-site"},
        ):
            assert (await client.get("/metrics", headers=headers)).status_code == 403
        assert (await client.post("/metrics")).status_code == 403 and (
            await client.get("/picture")
        ).status_code == 404
        assert "/metrics" in (await client.get("/")).text


def test_the_command_says_where_it_serves_and_ends_with_0_by_a_signal(
    lab_writer: LabWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    lab_writer.up()
    process = started("service", "run", "metrics", "--port", "0")
    line = lines_until(process, lambda line: "/metrics" in line)[-1]
    at = re.fullmatch(r"\S+  serving       emulated: (http://127\.0\.0\.1:\d+/metrics)\n", line)
    assert at is not None
    assert ("testbed_runs_total", "ok", "up") in samples(
        httpx.get(at[1], headers=OPENMETRICS, timeout=30).text
    )
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[1] == "" and process.returncode == 0
    assert main.run(["service", "run", "metrics", "--once"]) == 0
    assert ("testbed_circuits", "ocs1", "lit") in samples(capsys.readouterr().out)


def test_in_the_background_it_is_one_of_a_kind_and_started_again_when_it_is_killed(
    lab_writer: LabWriter, capsys: pytest.CaptureFixture[str]
) -> None:
    lab_writer.up()

    def typed(*argv: str, code: int = 0) -> Any:
        assert main.run(["service", argv[0], "metrics", *argv[1:], "--json"]) == code
        return json.loads(capsys.readouterr().out)

    def now() -> ExporterState | None:
        return EXPORTER.running(lab_writer.settings, key)

    key = key_of(load_lab(lab_writer.settings.inventory))
    first = typed("start", "--port", "0")["data"]["state"]
    try:
        assert first["state"] == "serving" and now() is not None
        assert ("testbed_runs_total", "ok", "up") in samples(
            httpx.get(first["url"], headers=OPENMETRICS, timeout=30).text
        )
        again = typed("start")["data"]
        assert (again["started"], again["state"]["pid"]) == (False, first["pid"])
        assert (
            "another metrics service runs for this lab"
            in typed("run", "--port", "0", code=4)["message"]
        )
        os.kill(first["pid"], signal.SIGKILL)
        while (other := now()) is None or other.pid == first["pid"] or other.state != "serving":
            time.sleep(0.01)
        assert httpx.get(other.url, timeout=30).status_code == 200
    finally:
        stopped = typed("stop")["data"]
    assert stopped["stopped"] and now() is None and not typed("stop")["data"]["stopped"]


def test_without_the_library_the_error_says_how_to_install_it(
    lab_writer: LabWriter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.exposition", None)
    assert main.run(["service", "run", "metrics", "--once"]) == 2
    assert "optical-testbed[metrics]" in capsys.readouterr().err


def test_the_page_lists_every_family_with_its_labels_and_meaning() -> None:
    text = (ROOT / "docs" / "how-to" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(testbed_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", text, re.MULTILINE)
    wanted = [
        (name, kind, ", ".join(f"`{x}`" for x in labels), text)
        for name, (kind, labels, text) in FAMILIES.items()
    ]
    assert [tuple(cell.strip() for cell in row) for row in rows] == wanted
    assert all(f"{limit:g}" in text for limit in DARK_S)


async def test_many_scrapes_at_once_read_the_journals_once() -> None:
    count = 0

    def collect() -> list[Any]:
        nonlocal count
        count += 1
        if count == 1:
            raise TestbedError("not yet")
        return []

    app = Endpoint(collect, Names("127.0.0.1", 8421)).app
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8421"
    ) as client:
        assert (await client.get("/metrics")).status_code == 503
        answers = await asyncio.gather(
            *(client.get("/metrics", headers=OPENMETRICS) for _ in range(20))
        )
    assert count == 2 and {a.text for a in answers} == {"# EOF\n"}
