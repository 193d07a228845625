"""Plays a transcript as a device on a real socket.

Format: one marker and one blank start every line. `# ` header (source, grade, remarks), `> ` sent
by the client, `< ` received from the device, `~ ` seconds before the next line. Line ends are not
written; TL1 is played with CR LF, SCPI with LF.

The n-th time a question is asked it gets its n-th answer, the last one again and again; questions
may come in another order. A TL1 question matches whatever its tag, and the answer carries the
client's tag instead of the captured one. What a transcript does not hold is answered by the player
itself: TL1 with a denial `IICM`, a SCPI query of the error queue with `0,"No error"`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
GRADES = ("REAL", "DOC", "CODE", "constructed")


@dataclass
class Exchange:
    question: str
    # seconds to wait, then lines
    answer: list[tuple[float, list[str]]] = field(default_factory=list)


@dataclass
class Transcript:
    name: str
    source: str
    grade: str
    exchanges: list[Exchange]

    @property
    def tl1(self) -> bool:
        return self.exchanges[0].question.endswith(";")


def read_transcript(name: str, *more: str) -> Transcript:
    """Read a transcript; the exchanges of `more` are added to it (a login, say). Raises ValueError
    - not in the format.
    """
    transcript = _read(name)
    for other in more:
        transcript.exchanges += _read(other).exchanges
    return transcript


def _read(name: str) -> Transcript:
    header: dict[str, str] = {}
    exchanges: list[Exchange] = []
    for number, line in enumerate((FOLDER / f"{name}.txt").read_text().splitlines(), 1):
        marker, text = line[:1], line[2:]
        if marker not in "#><~" or not line or line[1:2].strip():
            raise ValueError(f"{name}.txt:{number}: no marker: {line!r}")
        if marker == "#":
            key, _, value = text.partition(": ")
            header.setdefault(key, value)
        elif marker == ">":
            exchanges.append(Exchange(text))
        elif marker == "~":
            exchanges[-1].answer.append((float(text), []))
        else:
            if not exchanges[-1].answer:
                exchanges[-1].answer.append((0.0, []))
            exchanges[-1].answer[-1][1].append(text)
    if header.get("grade") not in GRADES or not header.get("source"):
        raise ValueError(f"{name}.txt: no source or no grade")
    return Transcript(name, header["source"], header["grade"], exchanges)


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def key(question: str) -> tuple[str, ...]:
    """What makes two questions the same: everything for SCPI, everything but tag and password for
    TL1.
    """
    if not question.endswith(";"):
        return (question,)
    parts = question.removesuffix(";").split(":")
    parts[0] = parts[0].upper()  # clients write either case
    if parts[0] == "ACT-USER":
        return ("ACT-USER",)
    without_tag = parts[:3] + parts[4:]
    while without_tag and not without_tag[-1]:
        without_tag.pop()
    return tuple(without_tag)


class Player:
    """A device that knows one transcript. `piece` cuts its answers into so many bytes, None leaves
    them whole.
    """

    def __init__(self, transcript: Transcript, piece: int | None = None) -> None:
        self.transcript = transcript
        self.asked: list[str] = []
        self._piece = piece
        self._answers: dict[tuple[str, ...], list[Exchange]] = defaultdict(list)
        for exchange in transcript.exchanges:
            self._answers[key(exchange.question)].append(exchange)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Player:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        end = b";" if self.transcript.tl1 else b"\n"
        try:
            while True:
                question = (await reader.readuntil(end)).decode().strip()
                self.asked.append(question)
                for wait_s, text in self._answer(question):
                    await asyncio.sleep(wait_s)
                    data = text.encode()
                    step = self._piece or len(data) or 1
                    for at in range(0, len(data), step):
                        writer.write(data[at : at + step])
                        await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._tasks.discard(task)

    def _answer(self, question: str) -> list[tuple[float, str]]:
        known = self._answers.get(key(question))
        eol = "\r\n" if self.transcript.tl1 else "\n"
        tag = (question.removesuffix(";").split(":") + [""] * 4)[3] or "0"
        if not known:
            if self.transcript.tl1:
                return [
                    (0.0, f"\r\n\n   PLAYER 26-01-01 00:00:00\r\nM  {tag} DENY\r\n   IICM\r\n;")
                ]
            return [(0.0, '0,"No error"\n')] if question.endswith("err?") else []
        exchange = known.pop(0) if len(known) > 1 else known[0]
        parts = [
            (wait_s, "".join(line + eol for line in lines)) for wait_s, lines in exchange.answer
        ]
        if self.transcript.tl1:
            parts = [(wait_s, re.sub(r"(?m)^M  \S+", f"M  {tag}", text)) for wait_s, text in parts]
        return parts
