"""Files that somebody else wrote are regular files of a bounded size, depth and number of values;
reading one can be ended.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from conformance.transcript import read_transcript
from emulators.inventory.config import read_config
from emulators.inventory.files import BadInventory
from optics import BadFile
from optics.plain import did_you_mean
from orchestrator import emulated as labproc
from orchestrator import session, settings
from orchestrator.cli import reproduce, saved
from orchestrator.credentials import private_text
from orchestrator.experiments.scenario.compare import scenario_of
from orchestrator.experiments.sweep.verb import load_campaign
from orchestrator.files.reading import MAX_BYTES, attentive
from orchestrator.inventory import json_reader, yaml_reader
from orchestrator.inventory.json_reader import read_json
from orchestrator.inventory.positions import MAX_LINES
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.plan.design.workload import read_text
from orchestrator.plan.reader import read_plan
from orchestrator.verbs.design_files import read_prices, read_workload

EMULATED = Path(__file__).parents[2] / "inventory" / "emulated"
RING = EMULATED.parents[1] / "examples" / "ring-12.json"
LAB = ("hosts.yml", "devices.yml", "fibres.yml")


def _inventory(path: Path) -> Path:
    """An inventory whose hosts.yml is `path`."""
    folder = path.parent / "lab"
    folder.mkdir()
    for name in (*LAB, "emulator.yml"):
        shutil.copy(EMULATED / name, folder)
    (folder / "hosts.yml").unlink()
    (folder / "hosts.yml").symlink_to(path)
    return folder


def _settings(path: Path) -> object:
    (path.parent / "testbed.toml").symlink_to(path)
    return settings.load({}, env={}, cwd=path.parent)


def _compared(plan: Path, job: Path | None) -> object:
    return scenario_of((plan, plan), job=job, repeats=1, iterations=1, watchdog_s=60.0)


def _plan(path: Path) -> object:
    return session.load_plan(path, session.load_lab(EMULATED))


READERS: dict[str, Callable[[Path], object]] = {
    "plan": _plan,
    "inventory": lambda path: session.load_lab(_inventory(path)),
    "inventory of a lab": lambda path: labproc.state_dir(_inventory(path)),
    "emulated inventory": lambda path: read_config(_inventory(path)),
    "workload": read_workload,
    "prices": read_prices,
    "saved plan": lambda path: saved.load(path, path.parent / "cache"),
    "job of a comparison": lambda path: _compared(RING, path),
    "plan of a comparison": lambda path: _compared(path, None),
    "scenario": reproduce.read,
    "campaign": load_campaign,
    "transcript": read_transcript,
    "password file": lambda path: private_text(path, "password_file"),
    "settings": _settings,
}
NOT_YAML = ("transcript", "password file")


@pytest.mark.parametrize("reader", READERS)
def test_a_fifo_is_refused_and_not_waited_for(reader: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file", 0o600)
    with pytest.raises((BadFile, BadInventory), match=r"FIFO|not a regular file"):
        READERS[reader](tmp_path / "file")


@pytest.mark.parametrize("reader", READERS)
def test_a_device_that_never_ends_is_not_read(reader: str, tmp_path: Path) -> None:
    (tmp_path / "file").symlink_to("/dev/zero")
    with pytest.raises(
        (BadFile, BadInventory), match=r"a device|not a regular file|can be read by others"
    ):
        READERS[reader](tmp_path / "file")


@pytest.mark.parametrize("reader", READERS)
def test_a_file_beyond_all_sizes_is_refused_before_it_is_read(reader: str, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        os.fchmod(file.fileno(), 0o600)
        os.ftruncate(file.fileno(), 1 << 40)  # a terabyte of nothing
    with pytest.raises((BadFile, BadInventory), match="larger than"):
        READERS[reader](tmp_path / "file")


def test_a_task_graph_is_a_regular_file_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.fbuf")
    with pytest.raises(BadFile, match="FIFO"):
        read_workload(tmp_path / "model.fbuf")


@pytest.mark.parametrize("reader", sorted(set(READERS) - set(NOT_YAML)))
@pytest.mark.parametrize(
    "deep", ["[" * 50_000, "a: " + "{b: " * 50_000, "- " * 50_000, '{"a":' * 50_000]
)
def test_values_nested_fifty_thousand_deep_are_refused(
    reader: str, deep: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text(deep)
    with pytest.raises((BadFile, BadInventory)):
        READERS[reader](tmp_path / "file")


def test_a_file_nested_too_deep_is_told_where() -> None:
    for read in (read_yaml, read_json):
        with pytest.raises(BadFile, match=r"^x:1:6[56]: .*nested deeper than 64 levels$"):
            read("[" * 50_000 + "]" * 50_000, "x")


def test_more_values_than_any_file_has_are_refused_in_json_and_yaml(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "[" + "1," * 20_001 + "1]"
    for module, read in ((yaml_reader, read_yaml), (json_reader, read_json)):
        assert module.MAX_NODES > 100_000
        monkeypatch.setattr(module, "MAX_NODES", 10_000)
        with pytest.raises(BadFile, match="more than 10000 values"):
            read(text, "x")


def test_aliases_and_merges_that_multiply_are_refused() -> None:
    laughs = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    merges = (
        "a: &a {"
        + ", ".join(f"k{i}: 1" for i in range(2000))
        + "}\nb:\n  <<: ["
        + ", ".join(["*a"] * 100_000)
        + "]\n"
    )
    for text in (laughs, merges):
        with pytest.raises(BadFile, match="too large"):
            read_yaml(text, "x.yml")


def test_a_number_in_base_sixty_of_any_length_is_refused() -> None:
    with pytest.raises(
        BadFile, match=r"x.yml:1:4: a: the number 1:1:1:1:... of 200001 characters is too large"
    ):
        read_yaml("a: 1" + ":1" * 100_000, "x.yml")


def test_a_file_of_mistakes_tells_the_first_and_how_many_more() -> None:
    body = {
        "schema": "testbed.plan/1",
        "name": "x",
        "links": [{"a": "gpu01:p9", "b": "gpu02:p9"}] * 1000,
    }
    with pytest.raises(BadFile) as refused:
        read_plan(json.dumps(body), "plan.json", session.load_lab(EMULATED))
    assert len(refused.value.problems) == MAX_LINES + 1
    assert refused.value.problems[-1].endswith(": and 1900 more mistakes from here on")


def test_a_suggestion_for_a_word_of_a_megabyte_is_not_looked_for_in_all_of_it() -> None:
    assert did_you_mean("gpu01" * 200_000, ["gpu01", "gpu02"]) == ""
    assert did_you_mean("gpu1", ["gpu01", "gpu02", "gpu11"]) == "; did you mean gpu01?"


def test_a_broken_file_of_megabytes_is_refused_by_the_fast_parser_too() -> None:
    with pytest.raises(BadFile, match=r"^x.yml:100001:"):
        read_yaml("".join(f"k{n}: [1, 2]\n" for n in range(100_000)) + "k: ]", "x.yml")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_reading_ends_with_a_signal_unless_it_is_ignored_and_the_handler_before_is_back(
    number: int,
) -> None:
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), attentive("plan.json"):
            os.kill(os.getpid(), number)
            while True:
                pass
        assert signal.getsignal(number) is signal.default_int_handler
        signal.signal(number, signal.SIG_IGN)
        with attentive("plan.json"):
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


# A lab whose files take for ever to read; the verb runs in an event loop, which would hear nothing
# meanwhile.
ENDLESS = """
import itertools, signal, sys
import orchestrator.session
def endless(*texts, **names):
    print("reading", file=sys.stderr, flush=True)
    for _ in itertools.count():
        pass
orchestrator.session.read_lab = endless
signal.signal(signal.SIGINT, signal.default_int_handler)
from orchestrator.cli.main import main
main()
"""


def _endless(tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    places = {f"TESTBED_{name}_DIR": str(tmp_path / name) for name in ("DATA", "STATE", "LOCK")}
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            ENDLESS,
            "verify",
            "--inventory",
            str(Path(__file__).parents[2] / "inventory" / "example-lab"),
            *more,
        ],
        env=os.environ | places | {"OCS_PASSWORD": "x"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_reads_for_ever_heeds_signals(tmp_path: Path, number: int) -> None:
    process = _endless(tmp_path)
    assert process.stderr is not None
    try:
        assert process.stderr.readline() == "reading\n"
        process.send_signal(number)
        output = process.communicate(timeout=60)[1]
        assert (process.returncode, output.partition("\n")[0]) == (130, "E-INTERRUPTED interrupted")
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()


def test_a_command_that_reads_for_ever_heeds_its_timeout(tmp_path: Path) -> None:
    process = _endless(tmp_path, "--timeout", "300ms")
    try:
        output = process.communicate(timeout=60)[1]
        assert (
            process.returncode == 5 and "E-TIMED-OUT" in output and "not read after 0.3 s" in output
        ), output
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()


def test_the_files_of_the_project_are_far_below_the_limits() -> None:
    root = EMULATED.parents[1]
    files = [
        *root.glob("inventory/*/*.yml"),
        *root.glob("examples/*.json"),
        *root.glob("examples/workloads/*"),
    ]
    assert len(files) > 10 and max(path.stat().st_size for path in files) * 20 < MAX_BYTES


def test_of_very_many_mistakes_only_those_that_are_shown_get_good_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    monkeypatch.setattr(
        "orchestrator.inventory.schema.did_you_mean", lambda *_: made.append(1) or ""
    )
    text = "schema: testbed.workload/1\nname: x\nranks: 2\n" + "".join(
        f"k{n}: 1\n" for n in range(5000)
    )
    with pytest.raises(BadFile) as refused:
        read_text(text, "w.yaml")
    lines = refused.value.problems
    assert (
        lines[0] == "w.yaml:4:1: k0: unknown field"
        and lines[98] == "w.yaml:102:1: k98: unknown field"
    )
    assert (
        lines[-1] == "w.yaml:104:1: and 4900 more mistakes from here on" and len(made) <= MAX_LINES
    )
