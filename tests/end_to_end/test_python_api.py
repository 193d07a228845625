"""The Python API on the emulated lab: what the command line does, from a script, a coroutine, a
page and a notebook.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import optical_testbed
from optical_testbed import AsyncLab, Event
from tests.end_to_end.conftest import ROOT, Lab, ring
from tests.house.repository import blocks

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(500),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

NOTEBOOK = ROOT / "examples" / "lab.ipynb"
HOSTS = [f"gpu{n:02d}" for n in range(1, 7)]


@pytest.fixture
def places(lab: Lab) -> dict[str, Any]:
    """What opens the lab with the store and journals of the command line of these tests."""
    return {
        "inventory": lab.inventory,
        "settings": {f"{n}_dir": lab.folder / n for n in ("data", "state", "lock")},
    }


def content(name: str, links: list[tuple[str, str]], **more: object) -> dict[str, Any]:
    return {
        "schema": "testbed.plan/1",
        "name": name,
        "links": [{"a": a, "b": b} for a, b in links],
        **more,
    }


@pytest.mark.long
async def test_a_script_and_the_command_line_see_one_lab(lab: Lab, places: dict[str, Any]) -> None:
    plan = content("pair", ring((1, 2)))
    events: list[Event] = []
    with optical_testbed.Lab.open(**places, progress=events.append) as script:
        assert script.plan(plan).made == 12
        up = script.up(plan)  # in a running event loop, as in a notebook
        assert up.made == 12 and up.pairs_ok == up.pairs_total == 30
        assert {"observe", "switch", "verify"} <= {
            event.name for event in events if event.kind == "done"
        }
        assert lab.testbed("status").must()["plan"] == "pair" and script.verify().ok
        dark = script.telemetry(up.run, "reconfig").frame()["dark_ms"]
        assert [round(ms, 3) for ms in dark] == [round(up.dark_ms or 0.0, 3)]
        assert script.up(plan).nothing_to_do and [run.verb for run in script.runs(2)] == [
            "up",
            "up",
        ]
    async with AsyncLab.open(**places) as other:
        assert (await other.status()).plan == "pair"
        assert (await other.down()).removed == 12
    assert not any(lab.light().values())


@pytest.mark.long
def test_an_interrupted_change_is_rolled_back_and_recorded(
    lab: Lab, places: dict[str, Any]
) -> None:
    seen: list[str] = []

    def interrupt(event: Event) -> None:
        seen.append(event.name)
        if event == Event("phase", "switch") and seen.count("switch") == 1:
            raise KeyboardInterrupt  # as by Ctrl-C in this thread

    # the devices are still at work when the interrupt reaches the engine
    with lab.settling(3.0), optical_testbed.Lab.open(**places, progress=interrupt) as script:
        with pytest.raises(
            KeyboardInterrupt, match="rolled back, everything is as before"
        ) as caught:
            script.up(content("pair", ring((1, 2))))
        assert isinstance(caught.value.__cause__, optical_testbed.Interrupted)
        assert script.runs(1)[0].status == "rolled-back"
        assert not script.status().plan
    assert not any(lab.light().values())


@pytest.mark.long
async def test_a_job_is_paused_resumed_moved_and_stopped_from_a_coroutine(
    lab: Lab, places: dict[str, Any]
) -> None:
    args = {"iterations": 0, "hidden": 64}
    job = {"name": "mlp", "workload": "train", "ranks": HOSTS, "rings": [HOSTS], "args": args}
    back = [HOSTS[0], *HOSTS[:0:-1]]
    async with AsyncLab.open(**places) as script:
        up = await script.up(content("one", ring((1, 2)), job=job))
        assert up.job is not None and up.job.state == "running"
        await script.job.wait(iterations=up.job.iterations + 5, timeout_s=100)
        assert (await script.job.pause(for_s=300)).state == "paused"
        with pytest.raises(optical_testbed.TimedOut, match="job wait"):
            await script.job.wait(iterations=10**9, timeout_s=3)
        assert (await script.job.resume()).state == "running"
        moved = await script.up(
            content("two", ring((3, 4)), job=job | {"rings": [HOSTS, back]}), job="live"
        )
        assert (
            moved.ring_change is not None
            and moved.ring_change.paused_ms is not None
            and not moved.ring_change.note
        )
        stopped = await script.job.stop()
        assert stopped.state == "stopped" and stopped.iterations > up.job.iterations
        rows = await script.job.records()
        assert len(rows) == stopped.iterations and rows[-1].fields["loss"] < rows[0].fields["loss"]  # type: ignore[operator]
        assert set((await script.job.logs(lines=3, host="gpu02")).lines) == {"rank 1 (gpu02)"}


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for everything temporary, with a path short enough for sockets; no lab is left in it
    afterwards.
    """
    with tempfile.TemporaryDirectory(
        prefix="tb-", dir="/tmp", ignore_cleanup_errors=True
    ) as folder:
        for name in ("TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
            monkeypatch.setenv(name, folder)
        monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        yield Path(folder)
        assert not list(Path(folder).glob("testbed-*/inventory"))


@pytest.mark.long
def test_the_emulated_lab_of_the_page_runs(home: Path) -> None:
    (text,) = [
        b.text
        for b in blocks(ROOT / "docs" / "how-to" / "python-api.md")
        if "with Lab.emulated" in b.text
    ]
    done = subprocess.run(
        [sys.executable, "-c", text],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert (
        lines[0] == "8 cross-connects to make"
        and lines[1].endswith("verified 12/12")
        and lines[2] == "finished"
    )


@pytest.mark.long
def test_the_notebook_runs(home: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(NOTEBOOK, 4)
    NotebookClient(
        book,
        timeout=240,
        kernel_name="python3",
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
    ).execute()
    shown = [
        "".join(str(o.get("text") or o.get("data", {})) for o in cell.get("outputs", ()))
        for cell in book.cells
    ]
    assert (
        "Polatis" in shown[1]
        and "the job lost for" in "".join(shown)
        and "image/png" in "".join(shown)
    )
    assert "('stopped', 6)" in shown[-1]


def test_the_notebook_is_kept_without_output_and_its_cells_are_python() -> None:
    import nbformat

    book = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(book)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert len(cells) >= 8 and not any(cell.outputs or cell.execution_count for cell in cells)
    for cell in cells:
        compile(cell.source, "lab.ipynb", "exec")
