"""How a script joins: by the environment, by a URL, in place of gloo, alone, again; and from the
wheel alone.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.backend.crew import ROOT, environment
from tests.workloads.ranks import free_port


def sums(join: str, more: str = "") -> str:
    """A script that joins, sums, does more, and prints what it has."""
    return f"""
import torch, torch.distributed as dist
{join}
t = torch.full((5,), float(dist.get_rank() + 1))
dist.all_reduce(t)
{more}
print(dist.get_backend(), dist.get_world_size(), t[4].item())
dist.destroy_process_group()
"""


def run(
    script: str,
    world: int,
    directory: Path,
    python: Path | str = sys.executable,
    cwd: Path = ROOT,
    **env: str,
) -> list[str]:
    """What the ranks print last. A variable that is empty is left out."""
    port, other, running = free_port(), free_port(), []
    for rank in range(world):
        own = (
            environment(rank, world, port, directory)
            | ({} if python == sys.executable else {"PYTHONPATH": ""})
            | env
        )
        own = {name: value for name, value in own.items() if value}
        argv = [
            python,
            "-c",
            script.replace("{rank}", str(rank))
            .replace("{port}", str(port))
            .replace("{other}", str(other)),
        ]
        running.append(
            subprocess.Popen(
                argv, env=own, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    try:
        ended = [(process.communicate(timeout=90), process.returncode) for process in running]
    finally:
        for process in running:
            process.kill()
            process.communicate()
    assert all(code == 0 for _, code in ended), ended
    return [out.splitlines()[-1] for (out, _), _ in ended]


JOIN = 'dist.init_process_group("testbed")'
URL = 'dist.init_process_group("testbed", init_method="tcp://127.0.0.1:{port}", rank={rank}, world_size=2)'
AGAIN = f"""dist.destroy_process_group()
import os; os.environ["MASTER_PORT"] = "{{other}}"  # else a rank may meet the store that rank 0 has yet to close, as with gloo
{JOIN}; t.fill_(1.0); dist.all_reduce(t)"""


@pytest.mark.long
def test_a_process_may_leave_and_join_again(tmp_path: Path) -> None:
    assert run(sums(JOIN, AGAIN), 2, tmp_path) == ["testbed 2 2.0"] * 2


@pytest.mark.long
def test_a_script_may_join_by_a_url_instead_of_the_environment(tmp_path: Path) -> None:
    clear = dict.fromkeys(
        ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), ""
    )
    assert run(sums(URL), 2, tmp_path, **clear) == ["testbed 2 3.0"] * 2


@pytest.mark.long
def test_a_single_rank_is_its_own_sum(tmp_path: Path) -> None:
    assert run(sums(JOIN, "dist.barrier()"), 1, tmp_path) == ["testbed 1 1.0"]


@pytest.mark.long
@pytest.mark.parametrize(
    "join",
    ['dist.init_process_group("cpu:testbed")', 'dist.init_process_group("cpu:testbed,cuda:gloo")'],
)
def test_the_back_end_may_be_named_for_a_device(join: str, tmp_path: Path) -> None:
    assert [line.split()[1:] for line in run(sums(join), 2, tmp_path)] == [["2", "3.0"]] * 2


# the wheel alone


def _needed(name: str, found: set[str]) -> set[str]:
    """The distributions that this one needs, itself included."""
    if name not in found:
        found.add(name)
        for text in distribution(name).requires or ():
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                try:
                    _needed(need.name, found)
                except PackageNotFoundError:
                    found.discard(need.name)
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment with torch, what torch needs, and the wheel of `backend/`: nothing else of the
    project can be imported.
    """
    folder = tmp_path_factory.mktemp("alone")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        folder / "wheels",
        ROOT / "backend",
    ]
    subprocess.run(build, check=True, cwd="/", timeout=300)
    (wheel,) = (folder / "wheels").glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    made = folder / "venv" / "bin" / "python"
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    for name in _needed("torch", set()) | {"numpy"}:
        for top in {
            Path(file).parts[0]
            for file in distribution(name).files or ()
            if ".." not in Path(file).parts
        }:
            if top != "__pycache__" and not (packages / top).exists():
                (packages / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    subprocess.run(
        [made, "-m", "pip", "install", "-q", "--no-deps", wheel], check=True, cwd="/", timeout=300
    )
    yield made


@pytest.mark.long
@pytest.mark.timeout(700)
def test_the_wheel_works_alone(python: Path, tmp_path: Path) -> None:
    for module in ("workloads", "orchestrator", "optics"):
        script = f"import importlib.util as u; print(u.find_spec({module!r}))"
        assert run(script, 1, tmp_path, python, tmp_path) == ["None"]
    assert (
        run(sums(JOIN, "dist.barrier()"), 4, tmp_path, python, tmp_path) == ["testbed 4 10.0"] * 4
    )
