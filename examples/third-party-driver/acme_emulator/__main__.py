"""`python -m acme_emulator PORT`: an Acme switch of 16x16 ports on a port of this machine. It is
independent of the driver.
"""

from __future__ import annotations

import asyncio
import sys

PORTS, SETTLE_S = 16, 0.02


class Switch:
    """The glass: which ingress leads to which egress, and since when."""

    def __init__(self) -> None:
        self.held: dict[int, tuple[int, float]] = {}

    def answer(self, line: str, now: float) -> str:
        match line.split():
            case ["WHO?"]:
                return f"A-{PORTS},7,1.4,{PORTS}"
            case ["MAP?"]:  # a circuit is reported when its mirrors rest
                return ",".join(
                    f"{a}>{b}" for a, (b, since) in self.held.items() if now >= since + SETTLE_S
                )
            case ["MAKE", a, b]:
                return self._make(int(a), int(b), now)
            case ["BREAK", a, b]:
                if self.held.get(int(a), (0, 0.0))[0] == int(b):
                    del self.held[int(a)]
                return "OK"
        return "NO such command"

    def _make(self, a: int, b: int, now: float) -> str:
        if not (1 <= a <= PORTS < b <= 2 * PORTS):
            return "NO such port"
        if a in self.held or any(b == out for out, _ in self.held.values()):
            return "NO port in use"
        self.held[a] = (b, now)
        return "OK"


async def main(port: int) -> None:
    switch, loop = Switch(), asyncio.get_running_loop()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(
                    f"{switch.answer(line.decode('ascii', 'replace'), loop.time())}\n".encode()
                )
                await writer.drain()
        except (ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
