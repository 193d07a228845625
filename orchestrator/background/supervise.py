"""A process that starts its worker again when something kills it: a slot change must not stay half
done until an operator looks.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

RESTARTS, WITHIN_S = 5, 60.0
"""A worker that is killed more often within this time (s) is not started again."""


def supervised() -> None:
    """Return in a child, which is started again when a signal kills it; this process exits as the
    child that ends by itself does.

    Call it before there are threads, connections or an event loop, none of which a fork survives.
    SIGTERM and SIGINT are passed on, and a child that outlives this process needs nothing from it.
    """
    killed: list[float] = []
    stopping: list[int] = []
    child = 0

    def pass_on(number: int, _: object) -> None:
        stopping.append(number)
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    while True:
        # one that comes now is for the child, which has no number yet
        signal.pthread_sigmask(signal.SIG_BLOCK, before)
        if stopping:
            os._exit(128 + stopping[0])
        child = os.fork()
        if child == 0:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, before)
            return
        signal.pthread_sigmask(signal.SIG_UNBLOCK, before)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code >= 0 or stopping:
            os._exit(code if code >= 0 else 128 - code)
        now = time.monotonic()
        killed = [at for at in killed if now - at < WITHIN_S] + [now]
        if len(killed) > RESTARTS:
            os._exit(128 - code)
