"""The verb `examples`: plans, workloads and experiments to start from, copied from the installation or the repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.call import Call, Result, verb

_KINDS = (".json", ".py", ".yaml", ".md", ".toml")
_USED_BY_EXPERIMENTS = ("bench_lab.py", "harness.py")


def _home() -> Path:
    """The folder that holds `examples` and what they use of `benchmarks`. Raises: Missing."""
    from importlib.metadata import PackageNotFoundError, files

    import optical_testbed
    from optics.errors import Missing

    if (optical_testbed.HOME / "examples" / "topoopt-12.json").is_file():  # run from its repository
        return optical_testbed.HOME
    try:
        installed = files("optical-testbed") or []
    except PackageNotFoundError:
        installed = []
    for file in installed:
        if file.parts[-2:] == ("examples", "topoopt-12.json"):
            return Path(str(file.locate())).resolve().parents[1]
    raise Missing("the examples are not installed", hint="pip install --force-reinstall --no-deps optical-testbed")


def _copy(home: Path, to: Path) -> list[Path]:
    """Copy what there is into a folder that is empty or new. Raises: BadFile."""
    import shutil

    from optics.errors import BadFile

    found = [path for folder in (home / "examples", home / "benchmarks") for path in sorted(folder.rglob("*")) if path.is_file()]
    wanted = [
        path
        for path in found
        if "__pycache__" not in path.parts
        and path.suffix in _KINDS
        and (path.parent.name != "benchmarks" or path.name in _USED_BY_EXPERIMENTS)
    ]
    try:
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise BadFile([f"{to}: is there already and not an empty folder"], hint="name another one; nothing was written")
        for path in wanted:
            target = to / path.relative_to(home)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    except OSError as error:
        raise BadFile([f"{to}: {error.strerror}"], hint="name another folder: testbed examples --copy DIR") from error
    return [path.relative_to(home) for path in wanted]


app = typer.Typer()


@verb(
    app,
    "examples",
    "List the examples that came along, or copy them into a folder.",
    examples="testbed examples\ntestbed examples --copy trial\ncd trial && testbed up --topology examples/ring-12.json",
    more="Plans and workloads for the default lab, experiments (examples/experiments), a driver to copy.",
)
def examples(
    call: Call,
    copy: Annotated[Path | None, typer.Option("--copy", metavar="DIR", help="Copy them here, a new or empty folder.")] = None,
) -> Result:
    home = _home()
    if copy is not None:
        files = [str(path) for path in _copy(home, copy)]
        hint = f"cd {copy} && testbed up --topology examples/topoopt-12.json"
        return Result({"folder": str(copy), "files": [*files]}, f"Copied {len(files)} files to {copy}", hint=hint)
    found = sorted(
        str(path.relative_to(home)) for kind in ("*.json", "*/*.yaml", "*/*.py") for path in (home / "examples").glob(kind)
    )
    return Result({"folder": str(home / "examples"), "files": [*found]}, "\n".join(found), hint="testbed examples --copy DIR")
