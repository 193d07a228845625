"""Python for every user of an emulated host.

Hosts share the machine's files, and its Python may be in a private home directory (pyenv, uv, a
clone with its environment), where the user that jobs run as may not go. There a host sees, in its
own view of the machine, a directory with this Python alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from emulators.fabric import linux


def places() -> list[Path]:
    """The directories this Python needs, by every name: of its environment, its installation, and
    links between the two.
    """
    found = [Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.base_prefix))]
    link = Path(sys.executable)
    for _ in range(40):  # as many links as the kernel follows
        found.append(link.parent.parent)
        if not link.is_symlink():
            break
        link = link.parent / link.readlink()
    return [
        place
        for place in dict.fromkeys(Path(os.path.normpath(place)) for place in found)
        if place.is_dir()
    ]


def open_to_all(wanted: Iterable[Path]) -> None:
    """In this mount namespace, cover each parent directory of `wanted` that is not open to all by
    one that holds only these.
    """
    covers: dict[Path, list[Path]] = {}
    for place in wanted:
        shut = next(
            (above for above in reversed(place.parents) if not above.stat().st_mode & 0o001), None
        )
        if shut is not None:
            covers.setdefault(shut, []).append(place)
    for cover, inside in covers.items():
        held = [(os.open(place, os.O_PATH | os.O_DIRECTORY), place) for place in inside]
        linux.mount("python", cover, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755")
        for fd, place in held:
            for part in [*reversed(place.relative_to(cover).parents), place.relative_to(cover)]:
                if not (cover / part).is_dir():
                    (cover / part).mkdir()
                    (cover / part).chmod(0o755)  # mkdir's own mode is subject to the umask
            linux.bind(f"/proc/self/fd/{fd}", place)
            os.close(fd)
