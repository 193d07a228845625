"""The YAML files of an inventory as mappings, read within bounds."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 8 << 20
MAX_DEPTH = 64


class BadInventory(ValueError):
    """The inventory cannot be emulated; one problem per line, `file: where: what`."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Tags that only Ansible can read (`!vault`, `!unsafe`) are dropped here; emulator.yml may give
    the value.
    """


_Loader.add_multi_constructor("!", lambda loader, suffix, node: None)


def mapping(path: Path) -> dict[str, Any]:
    """Return what a file says. Raises: BadInventory - it is missing, cannot be read, or is no
    mapping in YAML.
    """
    try:
        text = _text(path)
        _check_depth(text)
        content = yaml.load(text, Loader=_Loader)
    except FileNotFoundError:
        raise BadInventory(
            f"{path}: no such file; an inventory directory has hosts.yml, devices.yml and fibres.yml"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise BadInventory(f"{path}: {getattr(problem, 'strerror', None) or problem}") from None
    if not isinstance(content, dict):
        raise BadInventory(f"{path}: a mapping is expected at the top")
    return content


def _text(path: Path) -> str:
    """The text of a regular file of at most MAX_BYTES. Raises: OSError, UnicodeDecodeError."""
    # O_NONBLOCK: opening a FIFO without a writer would block for ever
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("not a regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(f"larger than {MAX_BYTES / 1e6:.1f} MB")
    return data.decode()


def _check_depth(text: str) -> None:
    """libyaml's composer calls itself and has no limit of its own. Raises: yaml.YAMLError - not
    YAML, or nested too deep.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if depth > MAX_DEPTH:
            raise yaml.YAMLError(f"nested deeper than {MAX_DEPTH} levels, from{event.start_mark}")
