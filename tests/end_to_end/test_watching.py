"""`testbed ui` beside a real lab: what hosts say of carriers and counters is shown, and the button
brings the safe plan up.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.end_to_end.conftest import ROOT, TESTBED, Lab, ring

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


def seen(
    url: str, wanted: Callable[[dict[str, Any]], object], timeout_s: float = 60.0
) -> dict[str, Any]:
    """The picture, as soon as it is as wanted."""
    deadline = time.monotonic() + timeout_s
    while True:
        picture: dict[str, Any] = httpx.get(f"{url}picture").json()
        if wanted(picture):
            return picture
        assert time.monotonic() < deadline, (
            picture["safe"],
            picture["trouble"],
            picture["run"],
            picture["log"][-5:],
        )
        time.sleep(0.05)


def states(picture: dict[str, Any]) -> dict[str, str]:
    return {c["id"]: c["state"] for c in picture["circuits"]}


def test_a_page_sees_carriers_and_rates_and_its_button_brings_the_safe_plan_up(lab: Lab) -> None:
    first, safe = lab.plan("first", ring((1, 2))), lab.plan("safe", ring((3, 4)))
    lab.up(first).must()
    command = [TESTBED, "ui", "--port", "0", "--safe-plan", safe]
    process = subprocess.Popen(
        command, env=lab.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        url = re.findall(r"http://\S+", process.stdout.readline())[0]
        key = re.findall(r"#key=(\S+)", process.stdout.readline())[0]
        picture = seen(url, lambda p: any(rates[0] is not None for rates in p["ports"].values()))
        assert (
            len(picture["circuits"]) == 12
            and set(states(picture).values()) == {"lit"}
            and not picture["trouble"]
        )
        lab.ask("fibre", name="f-gpu01-p1", cut=True)
        lost = states(seen(url, lambda p: "lost" in states(p).values()))
        assert all("gpu01:p1" in circuit for circuit, state in lost.items() if state == "lost")
        lab.ask("fibre", name="f-gpu01-p1", cut=False)
        seen(url, lambda p: set(states(p).values()) == {"lit"})
        headers = {"origin": url.rstrip("/")}
        token = httpx.post(f"{url}enter", json={"key": key}, headers=headers).json()["token"]
        with lab.settling(1.0):  # longer than a busy viewer needs for a look
            pressed = httpx.post(
                f"{url}safe", headers={**headers, "authorization": f"Bearer {token}"}
            )
            assert pressed.status_code == 202
            picture = seen(url, lambda p: p["safe"]["state"] not in ("ready", "running"), 120)
        assert (picture["safe"]["state"], picture["safe"]["message"]) == ("done", "safe is up")
        picture = seen(url, lambda p: p["run"]["status"] == "ok" and p["move"]["figures"])
        assert picture["plan"][0]["name"] == "safe" and {
            c["a"][-2:] for c in picture["circuits"]
        } == {"p3", "p4"}
        assert picture["move"]["run"] == picture["run"]["id"] == picture["marks"][-1]["run"]
        notices = [event["message"] for event in picture["log"]]
        assert any("goes dark" in text or "go dark" in text for text in notices), notices
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0 and not err, err
