"""S13: passwords of devices are in nothing that is written, printed or shown by `ps`; nothing
written can be read by others.
"""

from __future__ import annotations

import base64
import gzip
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.security.conftest import TEXTS, VAULT_WORD, Guarded

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

RING = [(f"gpu{k:02d}:p{1 + k % 4}", f"gpu{k % 4 + 1:02d}:p{1 + k % 4}") for k in range(1, 5)]
NEXT = [
    (f"gpu{k:02d}:p{1 + (k + 1) % 4}", f"gpu{k % 4 + 1:02d}:p{1 + (k + 1) % 4}")
    for k in range(1, 5)
]


def forms(word: str) -> list[bytes]:
    """How it might be written: in clear, as HTTP's Basic, in base64, in hex."""
    raw = word.encode()
    return [
        raw,
        base64.b64encode(b"admin:" + raw),
        base64.b64encode(raw).rstrip(b"="),
        raw.hex().encode(),
    ]


SECRETS = {
    form: name for name, word in {**TEXTS, "vault": VAULT_WORD}.items() for form in forms(word)
}


def found_in(data: bytes, where: str) -> list[str]:
    return [f"{where}: the password of {name}" for form, name in SECRETS.items() if form in data]


@contextmanager
def watched() -> Iterator[list[str]]:
    """Look at the arguments of every process, and at the environment of those that are not ours,
    for as long as this lasts.
    """
    found: list[str] = []
    over = threading.Event()
    seen: set[tuple[str, bytes]] = set()

    def look() -> None:
        while not over.wait(0.05):
            for entry in Path("/proc").iterdir():
                if not entry.name.isdigit():
                    continue
                with suppress(OSError):
                    command = (entry / "cmdline").read_bytes()
                    if (entry.name, command) in seen:
                        continue
                    seen.add((entry.name, command))
                    found.extend(found_in(command, f"arguments of {command[:80]!r}"))
                    if (
                        b"ansible" in command.split(b"\0", 2)[1:2]
                        or b"ansible_playbook.py" in command
                    ):
                        found.extend(
                            found_in(
                                (entry / "environ").read_bytes(), f"environment of {command[:80]!r}"
                            )
                        )

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
    assert any(b"ansible_playbook.py" in command for _, command in seen), "the watch saw Ansible"


def everything(lab: Guarded) -> Iterator[Path]:
    """What the commands wrote: not the inventory and the secrets, which the operator wrote."""
    for folder, inner, files in os.walk(lab.folder):
        inner[:] = [
            name
            for name in inner
            if Path(folder, name) not in (lab.inventory, lab.folder / "secrets")
        ]
        yield from (Path(folder, name) for name in (*files, *inner))


def killed_midway(lab: Guarded, plan: Path) -> None:
    """An `up` that dies after its first write."""
    for name in TEXTS:
        lab.ask("settle", device=name, s=2.0)
    before = sum(lab.writes().values())
    process = lab.command("up", "--topology", plan)
    give_up = time.monotonic() + 60
    while (
        sum(lab.writes().values()) == before
        and process.poll() is None
        and time.monotonic() < give_up
    ):
        time.sleep(0.02)
    process.kill()
    lab.reported.extend(process.communicate())
    for name in TEXTS:
        lab.ask("settle", device=name, s=0.05)


def test_passwords_are_nowhere_and_files_are_private(guarded: Guarded) -> None:
    lab, out = guarded, guarded.folder / "out"
    out.mkdir()
    ring, moved = lab.plan("ring", RING), lab.plan("next", NEXT)
    ring.chmod(0o600)
    moved.chmod(0o600)
    with watched() as found:
        for argv in (
            ("up", "--topology", str(ring)),
            ("verify",),
            ("devices",),
            ("plan", "--topology", str(moved), "-o", str(out / "saved.json")),
            *(
                ("devices", "driver", "record", name, "--out", str(out / f"{name}.txt"))
                for name in TEXTS
            ),
        ):
            code, output = lab.hears(*argv)
            assert code == 0, (argv, output)
        killed_midway(lab, moved)
        assert lab.hears("status")[0] in (0, 6, 7)
        died = max(path.name for path in (lab.folder / "state" / "runs").iterdir())
        code, output = lab.hears("resume", died)
        assert code == 0, output
        for argv in (
            (
                "run",
                "list",
            ),
            ("run", "show", "last"),
            ("doctor",),
            ("rollback", died),
            ("down", "--yes"),
        ):
            code, output = lab.hears(*argv)
            assert code == 0 or argv == ("doctor",), f"{argv}: {code}\n{output}"
        # A login that fails: the device is given another's password, and may say it again.
        code, output = lab.hears("devices", OCS2_WORD=TEXTS["ocs4"], OCS4_WORD=TEXTS["ocs2"])
        assert "ocs4" in output and ("refused" in output.lower() or "denied" in output.lower()), (
            output
        )
    for number, text in enumerate(lab.reported):
        found += found_in(text.encode(), f"output {number}")
    looked = 0
    loose = []
    for path in everything(lab):
        mode = path.lstat().st_mode
        if not path.is_symlink() and mode & 0o022:
            loose.append(f"{path.relative_to(lab.folder)} {stat.filemode(mode)}")
        if stat.S_ISREG(mode):
            looked += 1
            data = path.read_bytes()
            found += found_in(data, str(path.relative_to(lab.folder)))
            if data[:2] == b"\x1f\x8b":
                found += found_in(
                    gzip.decompress(data), f"{path.relative_to(lab.folder)}, unpacked"
                )
    assert not found, "\n".join(sorted(set(found)))
    assert not loose, "\n".join(loose)
    assert (
        looked > 30
        and list(lab.folder.rglob("artifacts/*/command"))
        and (lab.folder / "data" / "testbed.sqlite3").is_file()
    )
    private = [
        *(lab.folder / "state" / "runs").rglob("*"),
        *(lab.folder / "data").rglob("*"),
        *out.rglob("*"),
    ]
    readable = [
        str(path.relative_to(lab.folder))
        for path in private
        if not path.is_symlink() and path.lstat().st_mode & 0o077
    ]
    assert not readable, "\n".join(readable)


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    assert found_in(b"x " + TEXTS["ocs1"].encode(), "here") == ["here: the password of ocs1"]
    assert found_in(base64.b64encode(b"admin:" + TEXTS["ocs2"].encode()), "here")
