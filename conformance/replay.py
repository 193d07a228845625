"""Serves a transcript as a device on a loopback socket.

The n-th time a question is asked it gets its n-th answer, the last one again and again; questions
may come in another order. A TL1 question matches whatever its tag, and the answer carries the
client's tag. What the transcript does not hold is refused in the grammar's own way: TL1 by a denial
`IICM`, a SCPI query of the error queue by an empty queue, HTTP by 404, anything else by silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import defaultdict

import h11

from conformance.transcript import Exchange, Transcript, is_http
from optics import BadFile

LONGEST = 1 << 20  # bytes of one question


class Replay:
    """A device that replays one transcript. piece: cut its answers into pieces of this many bytes;
    None leaves them whole.
    """

    def __init__(self, transcript: Transcript, port: int = 0, piece: int | None = None) -> None:
        if transcript.kind == "netconf":
            raise BadFile(
                [
                    f"{transcript.name}: a NETCONF transcript cannot be served: its session is SSH, which is not recorded"
                ]
            )
        self.transcript = transcript
        self.port = port
        self.asked: list[str] = []
        self._piece = piece
        self._answers: dict[tuple[str, ...], list[Exchange]] = defaultdict(list)
        for exchange in transcript.exchanges:
            self._answers[_key(exchange.question)].append(exchange)
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Replay:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port, limit=LONGEST)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for talk in tuple(self._talks):
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            if self.transcript.greeting:
                await self._send(writer, "\r\n".join(self.transcript.greeting))
            if self.transcript.kind == "http":
                await self._http(reader, writer)
            else:
                await self._lines(reader, writer)
        except (
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            asyncio.CancelledError,
            ConnectionError,
            h11.ProtocolError,
        ):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._talks.discard(task)

    async def _lines(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = b";" if self.transcript.kind == "tl1" else b"\n"
        while True:
            question = (await reader.readuntil(end)).decode("utf-8", "backslashreplace").strip()
            self.asked.append(question)
            for wait_s, text in self._answer(question):
                await asyncio.sleep(wait_s)
                await self._send(writer, text)

    async def _http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = h11.Connection(h11.SERVER)
        asked = ""
        while True:
            event = server.next_event()
            if event is h11.NEED_DATA:
                data = await reader.read(65_536)
                server.receive_data(data)
                if not data:
                    return
            elif isinstance(event, h11.Request):
                asked = f"{event.method.decode()} {event.target.decode()}\n"
            elif isinstance(event, h11.Data):
                asked += bytes(event.data).decode("utf-8", "backslashreplace")
            elif isinstance(event, h11.EndOfMessage):
                self.asked.append(asked)
                await self._http_answer(server, writer, asked)
                return
            else:
                return

    async def _http_answer(
        self, server: h11.Connection, writer: asyncio.StreamWriter, asked: str
    ) -> None:
        known = self._answers.get(_http_key(asked)) or self._answers.get(
            (*_http_key(asked)[:1], "")
        )
        status, headers, body = 404, [("content-type", "text/plain")], "not in this transcript"
        if known:
            exchange = known.pop(0) if len(known) > 1 else known[0]
            lines = [line for _, part in exchange.answer for line in part]
            for wait_s, _ in exchange.answer:
                await asyncio.sleep(wait_s)
            at = lines.index("") if "" in lines else len(lines)
            status = int(lines[0].split()[1]) if lines and lines[0].startswith("HTTP/") else 200
            headers = [(k, v) for k, _, v in (line.partition(": ") for line in lines[1:at])]
            body = "\n".join(lines[at + 1 :])
        payload = body.encode()
        head = [*headers, ("content-length", str(len(payload))), ("connection", "close")]
        out = server.send(h11.Response(status_code=status, headers=head)) or b""
        out += server.send(h11.Data(data=payload)) or b""
        out += server.send(h11.EndOfMessage()) or b""
        await self._send_bytes(writer, out)

    async def _send(self, writer: asyncio.StreamWriter, text: str) -> None:
        await self._send_bytes(writer, text.encode())

    async def _send_bytes(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        step = self._piece or len(data) or 1
        for at in range(0, len(data), step):
            writer.write(data[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)

    def _answer(self, question: str) -> list[tuple[float, str]]:
        known = self._answers.get(_key(question))
        tl1 = self.transcript.kind == "tl1"
        tag = (question.removesuffix(";").split(":") + [""] * 4)[3] or "0"
        if not known:
            if tl1:
                return [
                    (0.0, f"\r\n\n   REPLAY 26-01-01 00:00:00\r\nM  {tag} DENY\r\n   IICM\r\n;")
                ]
            return [(0.0, '0,"No error"\n')] if question.lower().endswith("err?") else []
        exchange = known.pop(0) if len(known) > 1 else known[0]
        eol = "\r\n" if tl1 else "\n"
        parts = [
            (wait_s, "".join(line + eol for line in lines)) for wait_s, lines in exchange.answer
        ]
        if tl1:
            parts = [(wait_s, re.sub(r"(?m)^M  \S+", f"M  {tag}", text)) for wait_s, text in parts]
        return parts


def _key(question: str) -> tuple[str, ...]:
    """What identifies a question: for HTTP all but the headers, for TL1 all but tag and password,
    otherwise the whole text.
    """
    if is_http(question):
        return _http_key(question)
    if not question.endswith(";"):
        return (question,)
    parts = question.removesuffix(";").split(":")
    if parts[0].upper() == "ACT-USER":
        return ("ACT-USER",)
    without_tag = parts[:3] + parts[4:]
    while without_tag and not without_tag[-1]:
        without_tag.pop()
    return tuple(without_tag)


def _http_key(question: str) -> tuple[str, ...]:
    first, _, rest = question.partition("\n")
    *_, body = (
        rest.split("\n\n", 1) if "\n\n" in f"\n{rest}" and ":" in rest.split("\n", 1)[0] else [rest]
    )
    return first, body.strip()
