"""Where the examples and the pages of the documentation are installed."""

from __future__ import annotations

import re
from pathlib import Path

from optics.errors import TestbedError


def examples_home() -> Path:
    """The directory with `examples`. Raises: Missing."""
    from importlib.metadata import PackageNotFoundError, files

    import optical_testbed_home
    from optics.errors import Missing

    # run from its repository
    if (optical_testbed_home.HOME / "examples" / "topoopt-12.json").is_file():
        return optical_testbed_home.HOME
    try:
        installed = files("optical-testbed") or []
    except PackageNotFoundError:
        installed = []
    for file in installed:
        if file.parts[-2:] == ("examples", "topoopt-12.json"):
            return Path(str(file.locate())).resolve().parents[1]
    raise Missing(
        "the examples are not installed",
        hint="pip install --force-reinstall --no-deps optical-testbed",
    )


def with_pages(text: str) -> str:
    """The text; a page of the documentation that is not below this directory is named by where it
    is installed.
    """
    if ".md" not in text:
        return text
    from contextlib import suppress

    import optical_testbed_home

    def place(page: re.Match[str]) -> str:
        existing = (
            optical_testbed_home.HOME if page[0].startswith("extensions/") else home
        ) / page[0]
        return page[0] if Path(page[0]).is_file() or not existing.parent.is_dir() else str(existing)

    with suppress(TestbedError):
        home = examples_home()
        return re.sub(r"(?<![\w/])(?:docs/[\w/.-]+|extensions/\w+/README)\.md", place, text)
    return text
