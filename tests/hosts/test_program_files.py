"""The files of a program: what is copied to the hosts, and what is refused."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Collection
from pathlib import Path

import pytest

from optics import BadFile
from orchestrator.hosts import program
from orchestrator.session import load_lab

INVENTORY = Path(__file__).parents[2] / "inventory" / "emulated"
ME = (0, os.geteuid())


def refused(folder: Path) -> str:
    with pytest.raises(BadFile) as error:
        program.program_archive(folder, ME)
    return "\n".join(error.value.problems)


def test_the_archive_has_the_files_and_is_the_same_for_the_same_content(tmp_path: Path) -> None:
    (tmp_path / "package" / "__pycache__").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    for name in (
        "train.py",
        "package/a.py",
        "package/__pycache__/a.pyc",
        ".git/config",
        ".#train.py",
        "run.sh",
    ):
        (tmp_path / name).write_text(name)
    (tmp_path / "run.sh").chmod(0o744)
    packed = program.program_archive(tmp_path, ME)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert {m.name: m.mode for m in tar} == {
            "package/a.py": 0o644,
            "run.sh": 0o755,
            "train.py": 0o644,
        }
    os.utime(tmp_path / "train.py", (1, 1))
    assert program.program_archive(tmp_path, ME) == packed
    (tmp_path / "train.py").write_text("other")
    assert program.program_archive(tmp_path, ME) != packed


def test_links_fifos_strange_names_and_too_much_are_refused_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shadow").symlink_to("/etc/shadow")
    (tmp_path / "etc").symlink_to("/etc")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "two\nlines").write_text("")
    text = refused(tmp_path)
    assert (
        "shadow: a symbolic link; files of a program are copied, and links are not followed" in text
    )
    assert (
        "etc: a symbolic link" in text
        and "fifo: a FIFO is there" in text
        and r"control characters: 'two\nlines'" in text
    )

    many = tmp_path / "many"
    many.mkdir()
    assert "many: no files in it" in refused(many)
    for name in "abc":
        (many / name).write_bytes(b"x" * 10)
    monkeypatch.setattr(program, "MOST_BYTES", 25)
    assert "c: with it the files are larger than" in refused(many)
    monkeypatch.setattr(program, "MOST_FILES", 2)
    assert "many: more than 2 files; a data set belongs on the hosts, with `path`" in refused(many)
    assert "none: no such directory" in refused(tmp_path / "none")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user")
def test_another_users_file_does_not_decide_what_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    os.chown(tmp_path / "train.py", 12345, 12345)
    assert "train.py: belongs to another user" in refused(tmp_path)
    os.chown(tmp_path, 12345, 12345)
    assert f"{tmp_path}: belongs to another user" in refused(tmp_path)


def test_an_inventory_reads_its_programs_and_a_missing_directory_stops_only_plans_that_need_it(
    tmp_path: Path,
) -> None:
    for name in ("hosts.yml", "devices.yml", "fibres.yml"):
        (tmp_path / name).write_text((INVENTORY / name).read_text())
    assert not load_lab(tmp_path).programs
    declared = "{command: [python, train.py], files: programs/gpt, iterations: {reporter: true}}"
    (tmp_path / "programs.yml").write_text(f"programs: {{gpt: {declared}}}")
    gpt = load_lab(tmp_path).programs["gpt"]
    assert gpt.trouble == (f"{tmp_path}/programs/gpt: no such directory",) and not gpt.digest
    (tmp_path / "programs" / "gpt").mkdir(parents=True)
    (tmp_path / "programs" / "gpt" / "train.py").write_text("1")
    first = load_lab(tmp_path).programs["gpt"]
    assert (
        not first.trouble
        and first.digest == hashlib.sha256(program.files_of(first, tmp_path)).hexdigest()
    )
    assert program.directory(first) == f"/var/lib/testbed/programs/{first.digest}"
    (tmp_path / "programs" / "gpt" / "train.py").write_text("2")
    assert load_lab(tmp_path).programs["gpt"].version != first.version, (
        "so a running job is replaced"
    )
    (tmp_path / "programs.yml").write_text("programs: {gpt: {}}")
    with pytest.raises(
        BadFile, match=r"programs.yml:1:17: programs.gpt: the field command is missing"
    ):
        load_lab(tmp_path)


def test_files_of_programs_are_read_when_a_program_is_asked_for_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(folder: Path, uids: Collection[int]) -> bytes:
        read.append(folder.name)
        return b""

    monkeypatch.setattr(program, "program_archive", counted)
    lab = load_lab(INVENTORY)
    assert len(lab.programs) > 1 and "gpt" in lab.programs and not read, (
        "most commands run no program"
    )
    assert lab.programs["gpt"] is lab.programs["gpt"] and read == ["gpt"]


def test_what_every_user_may_write_does_not_decide_what_runs(tmp_path: Path) -> None:
    folder = tmp_path / "program"
    (folder / "open").mkdir(parents=True)
    for name in ("train.py", "open/model.py"):
        (folder / name).write_text("pass")
    program.program_archive(folder, ME)
    (folder / "train.py").chmod(0o666)
    (folder / "open").chmod(0o777)
    lines = refused(folder).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        str(folder / "open"),
        str(folder / "train.py"),
    ]
    assert all("every user may write it" in line for line in lines)
