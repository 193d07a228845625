"""Transcripts: the questions put to a device and its answers, in one text file with source and
grade at the top.

One marker and one blank start every line: `# ` header (source, grade, remarks), `> ` sent by the
client, `< ` received from the device, `~ ` seconds that pass before the next line. Line ends are
not recorded; blanks after the marker are significant.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from optics import BadFile
from optics.plain import reason

GRADES = ("REAL", "DOC", "CODE", "constructed")
MASK = "********"
TEAR = "\0"  # between the recorded parts
MAX_CHARACTERS = 64_000_000  # of a transcript; a dump of 320 ports has about 100 000
PAUSE_S = 0.05  # shorter silences are not worth a line


@dataclass
class Exchange:
    """One question and the parts of its answer: seconds to wait, then lines."""

    question: str
    answer: list[tuple[float, list[str]]] = field(default_factory=list)


@dataclass
class Transcript:
    """A transcript read from a file. greeting: what the device sends before the first question."""

    name: str
    source: str
    grade: str
    exchanges: list[Exchange]
    greeting: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """How its questions end: "tl1", "http", "netconf" or "lines"."""
        first = self.exchanges[0].question if self.exchanges else ""
        if first.startswith("<rpc"):
            return "netconf"
        if is_http(first):
            return "http"
        return "tl1" if first.endswith(";") else "lines"


def read_transcript(path: Path) -> Transcript:
    """Read a transcript file. Raises: BadFile - it cannot be read, is not a regular file, is too
    large; or as `transcript_of`.
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError("not a regular file")
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
        if len(text) > MAX_CHARACTERS:
            raise OSError(
                f"larger than {MAX_CHARACTERS / 1e6:g} million characters, the most that is read"
            )
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(
            [f"{path}: {reason(error)}"],
            hint="a transcript is made by: testbed devices driver record",
        ) from error
    return transcript_of(text, path)


def transcript_of(content: str, path: Path) -> Transcript:
    """Parse `content` as a transcript; `path`: its file, for error messages.

    Raises: BadFile - a line that is not in the format (with file:line), no source or grade, no
    question.
    """
    header: dict[str, str] = {}
    exchanges: list[Exchange] = []
    greeting: list[str] = []
    last = ""
    for number, line in enumerate(content.splitlines(), 1):
        marker, text = line[:1], line[2:]
        if not line or marker not in "#><~" or line[1:2].strip():
            raise BadFile(
                [
                    f"{path}:{number}: wanted a line that starts with '# ', '> ', '< ' or '~ ', got {line[:40]!r}"
                ]
            )
        if marker == "#":
            key, _, value = text.partition(": ")
            header.setdefault(key, value)
        elif marker == ">":
            if last == ">" and is_http(exchanges[-1].question):
                exchanges[-1].question += "\n" + text
            else:
                exchanges.append(Exchange(text))
        elif marker == "~":
            try:
                pause_s = float(text)
            except ValueError:
                raise BadFile([f"{path}:{number}: wanted seconds, got {text[:40]!r}"]) from None
            if exchanges:
                exchanges[-1].answer.append((pause_s, []))
        elif not exchanges:
            greeting.append(text)
        else:
            if not exchanges[-1].answer:
                exchanges[-1].answer.append((0.0, []))
            exchanges[-1].answer[-1][1].append(text)
        last = marker
    problems = []
    if not header.get("source"):
        problems.append(
            f"{path}: no source: the first lines state its origin, such as '# source: own device, lab X'"
        )
    if header.get("grade") not in GRADES:
        problems.append(
            f"{path}: grade: wanted one of {', '.join(GRADES)}, got {header.get('grade')!r}"
        )
    if not exchanges:
        problems.append(f"{path}: it has no question: no line starts with '> '")
    if problems:
        raise BadFile(problems)
    return Transcript(path.stem, header["source"], header["grade"], exchanges, greeting)


def is_http(question: str) -> bool:
    """Whether a question is an HTTP request, which can span several lines."""
    return question.split(" /", 1)[0] in ("GET", "PUT", "POST", "DELETE", "PATCH")


class Recorder:
    """Records the traffic of a link with secrets masked, both as given and as encoded in logins."""

    def __init__(self, secrets: Iterable[str], pairs: Iterable[tuple[str, str]] = ()) -> None:
        argv = {s for s in secrets if s}
        argv |= {
            base64.b64encode(f"{user}:{password}".encode()).decode()
            for user, password in pairs
            if password
        }
        self._secrets = sorted(argv, key=len, reverse=True)
        self._parts: list[tuple[str, float, bytearray]] = []

    def hear(self, direction: str, data: bytes) -> None:
        """Record data that passed; for `drivers.link.recorder.listening`."""
        now = time.monotonic()
        if self._parts and self._parts[-1][0] == direction and now - self._parts[-1][1] < PAUSE_S:
            self._parts[-1][2].extend(data)
        elif data:
            self._parts.append((direction, now, bytearray(data)))

    @property
    def exchanges(self) -> int:
        """How many questions were recorded."""
        return sum(direction == ">" for direction, _, _ in self._parts)

    def text(self, source: str, grade: str, remarks: Iterable[str] = ()) -> str:
        """The transcript. `source` is to mention masked credentials."""
        lines = [f"# source: {source}", f"# grade: {grade}", *(f"# {remark}" for remark in remarks)]
        before_s: float | None = None
        for (direction, at_s, _), text in zip(self._parts, self._masked(), strict=True):
            if direction == "<" and before_s is not None and at_s - before_s >= PAUSE_S:
                lines.append(f"~ {at_s - before_s:.2f}")
            before_s = at_s
            lines += [
                f"{direction} {line}" if line else direction
                for line in text.removesuffix("\n").split("\n")
            ]
        return "\n".join(lines) + "\n"

    def _masked(self) -> list[str]:
        """The text of every part. A secret may span several parts: a line that echoes does so
        character by character.
        """
        texts = [
            data.decode("utf-8", "backslashreplace").replace("\r", "").replace(TEAR, "\\x00")
            for _, _, data in self._parts
        ]
        for one in {direction for direction, _, _ in self._parts}:
            mine = [at for at, (direction, _, _) in enumerate(self._parts) if direction == one]
            whole = TEAR.join(texts[at] for at in mine)
            for secret in self._secrets:
                torn = f"{TEAR}*".join(map(re.escape, secret))
                whole = re.sub(torn, lambda found: MASK + TEAR * found[0].count(TEAR), whole)
            for at, text in zip(mine, whole.split(TEAR), strict=True):
                texts[at] = text
        return texts
