"""Devices of a few lines, for what a link or a driver does with an answer; emulators are an
independent reading of the manuals.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from drivers.api import CircuitSwitch
from drivers.registry import open_device
from optics import CrossConnect, DeviceConfig, Port

NC = "urn:ietf:params:xml:ns:netconf:base:1.0"


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Answers = Callable[[Request], "bytes | Awaitable[bytes]"]


def http(status: int, body: bytes | str = b"", **headers: str) -> bytes:
    """A whole HTTP/1.1 answer."""
    content = body.encode() if isinstance(body, str) else body
    named = {
        "content-length": str(len(content)),
        **{key.replace("_", "-"): value for key, value in headers.items()},
    }
    head = "".join(f"{key}: {value}\r\n" for key, value in named.items())
    return f"HTTP/1.1 {status} Whatever\r\n{head}\r\n".encode() + content


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(talk: Talk) -> AsyncIterator[int]:
    """A port on loopback, whose connections are talked to until the end of the context."""
    talks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            await talk(reader, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


@asynccontextmanager
async def spoken_to(talk: Talk, driver: str, **config: Any) -> AsyncIterator[CircuitSwitch]:
    """The driver of a device `ocs1` on loopback, which talks so; `config`: more of its
    configuration.
    """
    async with serving(talk) as port:
        device = open_device(
            DeviceConfig("ocs1", driver, f"tcp://127.0.0.1:{port}", timeout_s=0.3, **config)
        )
        try:
            yield device
        finally:
            await device.close()


def cross(ingress: int, egress: int) -> CrossConnect:
    """A circuit through the device `ocs1`."""
    return CrossConnect(Port("ocs1", str(ingress)), Port("ocs1", str(egress)))


@asynccontextmanager
async def http_device(answers: Answers) -> AsyncIterator[tuple[str, list[Request]]]:
    """Serve HTTP on loopback: every request's answer is what `answers` says, byte for byte; empty
    closes the connection.
    """
    heard: list[Request] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {
            key.lower(): value for key, _, value in (line.partition(": ") for line in lines if line)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        method, path, _ = first.split(" ")
        heard.append(Request(method, path, headers, body))
        reported = answers(heard[-1])
        writer.write(reported if isinstance(reported, bytes) else await reported)
        await writer.drain()

    async with serving(talk) as port:
        yield f"http://127.0.0.1:{port}", heard


@dataclass
class Netconf:
    """A NETCONF device being served: `known_hosts` names its key, `heard` the operations (XML
    inside the rpc).
    """

    address: str
    known_hosts: Path
    heard: list[str] = field(default_factory=list)
    sessions: int = 0


@asynccontextmanager
async def netconf_device(
    answers: Callable[[str], str | bytes | None],
    folder: Path,
    *,
    chunked: bool = True,
    capabilities: tuple[str, ...] = (),
    hello: bytes | None = None,
    password: str = "secret",
) -> AsyncIterator[Netconf]:
    """Serve NETCONF over SSH on loopback.

    `answers` gets the operation and returns what belongs inside the rpc-reply; bytes go out as they
    are ("{id}" is the message-id), None is silence, b"" ends the session. chunked: framing of
    NETCONF 1.1 (RFC 6242), split into small chunks.
    """
    key = asyncssh.generate_private_key("ssh-ed25519")
    base = [
        "urn:ietf:params:netconf:base:1.0",
        *(["urn:ietf:params:netconf:base:1.1"] if chunked else []),
        *capabilities,
    ]
    listed = "".join(f"<capability>{uri}</capability>" for uri in base)
    greeting = f'<hello xmlns="{NC}"><capabilities>{listed}</capabilities><session-id>4</session-id></hello>]]>]]>'.encode()

    class Server(asyncssh.SSHServer):
        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, given: str) -> bool:
            return (username, given) == ("admin", password)

    def framed(text: str) -> bytes:
        if not chunked:
            return text.encode() + b"]]>]]>"
        data = text.encode()
        return (
            b"".join(
                b"\n#%d\n%s" % (len(data[at : at + 100]), data[at : at + 100])
                for at in range(0, len(data), 100)
            )
            + b"\n##\n"
        )

    async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
        device.sessions += 1
        process.stdout.write(greeting if hello is None else hello)
        buffer, greeted = b"", False
        with suppress(ConnectionError, asyncssh.Error, BrokenPipeError):
            while data := await process.stdin.read(4096):
                buffer += data
                while True:
                    end = b"\n##\n" if chunked and greeted else b"]]>]]>"
                    raw, found, rest = buffer.partition(end)
                    if not found:
                        break
                    buffer = rest
                    if not greeted:
                        greeted = True
                        continue
                    text = re.sub(rb"\n#[0-9]+\n", b"", raw).decode() if chunked else raw.decode()
                    number = re.search(r'message-id="([^"]*)"', text)
                    inside = re.search(r"<rpc[^>]*>(.*)</rpc>", text, re.DOTALL)
                    assert number and inside
                    device.heard.append(inside[1])
                    output = answers(inside[1]) if "<close-session" not in inside[1] else "<ok/>"
                    if output == b"":
                        process.exit(0)
                        return
                    if isinstance(output, bytes):
                        process.stdout.write(output.replace(b"{id}", number[1].encode()))
                    elif output is not None:
                        process.stdout.write(
                            framed(
                                f'<rpc-reply xmlns="{NC}" message-id="{number[1]}">{output}</rpc-reply>'
                            )
                        )
        process.exit(0)

    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=Server,
        server_host_keys=[key],
        process_factory=serve,
        encoding=None,
        allow_scp=False,
    )
    port = server.get_port()
    known = folder / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {key.export_public_key().decode().strip()}\n")
    device = Netconf(f"netconf://127.0.0.1:{port}", known)
    try:
        yield device
    finally:
        server.close()
        await server.wait_closed()
