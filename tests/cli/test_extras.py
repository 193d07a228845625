"""Without the packages of an extra: a verb that needs them says what to install."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from drivers.link.visa import VisaLink
from optics.errors import Missing
from optics.extras import extra
from orchestrator.cli.listing import VERBS
from orchestrator.settings import load
from orchestrator.telemetry.grafana import GrafanaApi
from orchestrator.telemetry.process import configured
from orchestrator.views.report.figures import prepare
from planner.formats import taskgraph
from tests.extras import EXTRAS, PROJECT, installed, only_in
from tests.house.repository import ROOT, tracked

HERE = Path()
USES: dict[str, Callable[[], object]] = {
    "grafana": lambda: GrafanaApi("http://127.0.0.1:9", "token").version(),
    "influx": lambda: configured(load()),
    "report": lambda: prepare(HERE),
    "traces": lambda: taskgraph.write({}),
    "visa": lambda: VisaLink("ocs1", "visa://x", 1.0, resource="x")._open(),
}


def named() -> dict[str, list[str]]:
    """The extras that the program names in `extra(...)` and `need(...)`, with the files."""
    found: dict[str, list[str]] = {}
    for path in tracked():
        if path.suffix != ".py" or "tests" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        if "optics.extras" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("extra", "need")
            ):
                given = node.args[0]
                assert isinstance(given, ast.Constant) and isinstance(given.value, str), path
                found.setdefault(given.value, []).append(path.name)
    return found


def test_every_extra_that_an_error_names_exists_and_all_has_every_one() -> None:
    assert set(named()) <= set(EXTRAS)
    own = {"all", "dev", "fuzz"}
    everything = installed(EXTRAS["all"])
    for name in EXTRAS.keys() - own:
        assert installed(EXTRAS[name]) <= everything, name


def test_packages_of_an_extra_are_not_in_the_base_installation() -> None:
    base = installed(PROJECT["dependencies"])
    for name in EXTRAS.keys() - {"all", "dev"}:
        assert installed(EXTRAS[name]) - base, f"{name} adds nothing"


@pytest.mark.parametrize("name", sorted(USES))
def test_without_its_packages_what_needs_an_extra_names_it(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for place in ("STATE", "DATA", "CACHE"):
        monkeypatch.setenv(f"TESTBED_{place}_DIR", str(tmp_path))
    monkeypatch.setenv("TESTBED_INFLUX_URL", "http://127.0.0.1:9")
    absent = only_in([name])
    loaded = [module for module in sys.modules if module.partition(".")[0] in absent]
    for module in {*absent, *loaded}:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(Missing, match=r"the Python package .* is not installed") as caught:
        USES[name]()
    assert caught.value.hint == f"{sys.executable} -m pip install 'optical-testbed[{name}]'"


def test_the_emulated_lab_without_its_packages_names_its_extra() -> None:
    program = """
import sys
sys.modules.update(asyncssh=None, h11=None)
from emulators.__main__ import main
sys.exit(main(["inventory/emulated"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "asyncssh, h11" in done.stderr
    assert f"{sys.executable} -m pip install 'optical-testbed[lab]'" in done.stderr


def test_a_module_of_this_program_that_is_missing_is_a_fault_and_nothing_to_install() -> None:
    with pytest.raises(ModuleNotFoundError), extra("ui", "the page"):
        import orchestrator.no_such_module  # type: ignore[import-not-found]  # noqa: F401


def test_help_of_every_verb_needs_no_extra(tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules.update(dict.fromkeys({only_in(["all"])!r}))
from orchestrator.cli.main import run
for verb in {sorted(VERBS)!r}:
    assert run([verb, "--help"]) == 0, verb
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True)
