"""The repository as text: its files, its pages, the commands and plans they show."""

from __future__ import annotations

import ast
import gc
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_GENERATED = {".git", ".venv", "build", "dist"}


@cache
def tracked() -> tuple[Path, ...]:
    """Every file of the project: what git tracks or would; without git (a source archive) all that
    is no cache.
    """
    asked = [
        "git",
        "-c",
        f"safe.directory={ROOT}",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    try:
        notice = subprocess.run(asked, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        names = [name for name in notice.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        names = [
            str(path.relative_to(ROOT))
            for path in ROOT.rglob("*")
            if not any(
                p in _GENERATED or p.endswith((".egg-info", "cache", "cache__"))
                for p in path.relative_to(ROOT).parts
            )
        ]
    return tuple(path for name in sorted(names) if (path := ROOT / name).is_file())


def nodes(file: Path) -> tuple[ast.AST, ...]:
    """All nodes of a Python file, outer ones first."""
    return _nodes(file.read_text())


@cache
def _nodes(text: str) -> tuple[ast.AST, ...]:
    found = tuple(ast.walk(ast.parse(text)))
    gc.freeze()  # they stay, and are millions
    return found


@cache
def pages() -> tuple[Path, ...]:
    """Every page people read."""
    return tuple(path for path in tracked() if path.suffix == ".md")


@cache
def scenarios() -> dict[str, Path]:
    """The file of every scenario, by the name of its folder."""
    found = [path for path in tracked() if path.name == "scenario.yaml"]
    return {path.parent.name: path for path in sorted(found, key=lambda path: path.parent.name)}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `line` is that of its first line of text."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, text: str | None = None) -> Iterator[Block]:
    """The fenced blocks of a page."""
    opened: tuple[str, str, int] | None = None
    kept: list[str] = []
    for number, line in enumerate((page.read_text() if text is None else text).splitlines(), 1):
        fence = re.match(r" *(```+) *([A-Za-z0-9]*)", line)
        if fence is None or (opened is not None and not fence[1].startswith(opened[0])):
            kept.append(line)
        elif opened is None:
            opened, kept = (fence[1], fence[2], number + 1), []
        else:
            yield Block(page, opened[2], opened[1], "\n".join(kept))
            opened = None
    assert opened is None, f"{page}: a block that does not end"


def commands(block: Block) -> Iterator[list[str]]:
    """The words of every command in a `console` or `sh` block: pipes and lists apart, redirections
    and remarks gone.
    """
    if block.language not in ("console", "sh"):
        return
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        if block.language == "console":
            if not line.startswith("$ "):
                continue
            line = line[2:]
        yield from split(line)


def split(line: str) -> Iterator[list[str]]:
    """The commands of one shell line. `A=b cmd` is `cmd`; what follows `>` or `<` is a file."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
    lexer.wordchars += "@:+%,=*~$"
    words: list[str] = []
    to_file = False
    for word in [*lexer, ";"]:
        if word and set(word) <= set("|;&"):
            while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
                words.pop(0)
            if words and words[0] == "sudo":
                words.pop(0)
            if words:
                yield words
            words = []
        elif set(word) <= set("<>") and word:
            to_file = True
        elif to_file:
            to_file = False
        else:
            words.append(word)
