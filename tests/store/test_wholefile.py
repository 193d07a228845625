"""Files are whole or as they were: a disk that fills, an error in the middle, links, and what is no
plain file.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.files.atomic import atomic_write, probe, write_whole
from tests.disk import room_for


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_that_cannot_be_finished_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_whole(path, "old")
    with room_for(1000), pytest.raises(OSError, match="File too large"):
        write_whole(path, "x" * 5000)
    probe(path)
    with pytest.raises(NotADirectoryError):
        probe(path / "below")
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as fresh:
        fresh.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and names(tmp_path) == ["page.html"]
    write_whole(path, "grüße")
    assert path.read_text(encoding="utf-8") == "grüße"


def test_behind_a_link_the_file_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("file")
    for text in ("new", "newer"):
        write_whole(link, text)
        assert link.is_symlink() and (tmp_path / "file").read_text() == text
    assert names(tmp_path) == ["file", "link"]


def test_a_pipe_is_written_and_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, "through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert pipe.is_fifo() and names(tmp_path) == ["pipe"]


def test_the_disk_has_the_content_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(fd: int) -> None:
        done.append("folder" if Path(f"/proc/self/fd/{fd}").readlink() == tmp_path else "content")
        fsync(fd)

    def renamed(fresh: Path, place: Path) -> Path:
        done.append("name")
        return replace(fresh, place)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    write_whole(tmp_path / "a", "text")
    assert done == ["content", "name", "folder"]
