"""Attachments in their order: what was reserved begins before anything slow."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from optics.plan import Job
from orchestrator.extensions import NAMES, extension_parts
from orchestrator.jobs.attachments import Attachment, Launch, attachments, begin_attachments
from orchestrator.store.job_spec import JobSpec
from tests.house.repository import ROOT


def test_a_lease_is_renewed_before_hosts_are_asked_for_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import asyncio

    done: list[str] = []
    for kind in attachments():

        async def ready(*_: Any, key: str = kind.key) -> None:
            done.append(f"ready {key}")

        async def began(_: Any, given: Any, __: Launch, key: str = kind.key) -> Any:
            done.append(f"begin {key}")
            return given

        monkeypatch.setattr(kind, "ready", ready)
        monkeypatch.setattr(kind, "begin", began)
    job = Job("mlp", "train", ("gpu01",), attached={kind.key: None for kind in attachments()})
    spec = JobSpec(job, "mlp.r1", "gloo", {kind.key: {} for kind in attachments()})
    launch = Launch(SimpleNamespace(), job, "r1", None)  # type: ignore[arg-type]
    asyncio.run(begin_attachments(launch, spec, lambda _: None))
    assert (
        done.index("begin functions") < done.index("ready congestion") < done.index("begin shadow")
    )


def test_every_extension_has_the_parts_that_all_have() -> None:
    planned = {path.parent.name for path in Path(ROOT / "extensions").glob("*/plan.py")}
    assert len(planned) == len(
        {kind.key for kind in extension_parts("plan", "PLANNED")}
    ) == 5 and planned <= {*NAMES}
    given = [kind.key for kind in attachments()]  # the circuits of regions are not given to a job
    assert [
        kind.key for kind in extension_parts("plan", "PLANNED") if kind.key != "regions"
    ] == given
    assert all(isinstance(kind, Attachment) for kind in attachments())
    assert {path.parent.name for path in Path(ROOT / "extensions").glob("*/__init__.py")} == {
        *NAMES
    }
