"""Keep the whole lab in one process tree inside its own namespaces, so that nothing outlives it,
however it ends.

Two processes matter. The *keeper* stays on the machine, waits, passes signals on and removes the
lab's files. The *root* is the first process of a new pid namespace with its own network, mounts,
host name and IPC: when it dies the kernel kills everything below it, and with the last process go
the namespaces, interfaces and mounts. Each notices when the other one is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from emulators.fabric import linux


def contain(
    root: Callable[[Callable[[], None]], int],
    *,
    surrender: Callable[[], None],
    traces: tuple[int, Sequence[str]],
) -> int:
    """Run `root` as the first process of new namespaces; return its exit status, 128 + n if signal
    n ended it.

    `root` gets a function to call once it starts no more processes by fork; `surrender` closes in
    the keeper what only the root may hold; `traces` are files, by folder descriptor and names, that
    go with the lab.
    """
    here, existing = os.pipe()
    linux.unshare(linux.NEW_PID)
    pid = os.fork()
    if pid == 0:
        os.close(existing)
        linux.die_with_parent(signal.SIGKILL)

        def inside() -> int:
            # a first process is spared signals it has no handler for
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda number, _: os._exit(128 + number))
            _isolate()
            return root(lambda: _watch(here, traces))

        linux.leave(inside)
    os.close(here)
    surrender()

    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM if number == signal.SIGHUP else number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, pass_on)
    _, code = os.waitpid(pid, 0)
    remove(traces)
    os.close(existing)
    return os.waitstatus_to_exitcode(code) if os.WIFEXITED(code) else 128 + os.WTERMSIG(code)


def remove(traces: tuple[int, Sequence[str]]) -> None:
    """Delete the lab's files; those gone already are fine."""
    folder, names = traces
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _watch(keeper: int, traces: tuple[int, Sequence[str]]) -> None:
    """End everything when the keeper dies. A thread, so that it works while the event loop is
    busy.
    """

    def wait() -> None:
        os.read(keeper, 1)
        remove(traces)
        os._exit(1)

    threading.Thread(target=wait, name="keeper-watch", daemon=True).start()
    linux.die_with_parent(0)


def _isolate() -> None:
    linux.unshare(linux.NEW_NET | linux.NEW_NS | linux.NEW_UTS | linux.NEW_IPC)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    linux.mount("run", "/run", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755")
    Path("/run/netns").mkdir()
    linux.mount("shm", "/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV)
    _room_for_hosts(Path("/var/lib"))
    if Path("/var/log").is_dir():  # logins on the hosts are not logins on the machine
        linux.mount("log", "/var/log", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755")


def _room_for_hosts(folder: Path) -> None:
    """Give `folder` an empty `testbed` to mount on, without making one on the machine: a tmpfs
    showing everything else as it is.
    """
    original = Path("/run/original")
    original.mkdir()
    linux.bind(folder, original, recursive=True)
    linux.mount("lib", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=0755")
    for entry in original.iterdir():
        here = folder / entry.name
        if entry.name == "testbed":
            continue
        if entry.is_symlink():
            here.symlink_to(entry.readlink())
            continue
        if entry.is_dir():
            here.mkdir()
        else:
            here.touch()
        linux.bind(entry, here, recursive=True)
    (folder / "testbed").mkdir()
