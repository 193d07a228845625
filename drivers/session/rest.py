"""Requests over HTTP: reads are repeated once if their answer is lost, writes never."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from drivers.link.base import Dropped
from drivers.link.http import Answer, HttpLink
from drivers.wire.rest import restconf_message
from optics import DeviceConfig, Garbled, Refused

T = TypeVar("T")

OPTIONS = {"ca_file": "certificates (PEM) to trust for https instead of the system's"}


def open_http(config: DeviceConfig) -> HttpLink:
    """The link to an HTTP device of the inventory. Raises: BadFile - no http:// or https://
    address.
    """
    return HttpLink(
        config.name,
        config.address,
        config.timeout_s,
        username=config.username,
        password=config.password,
        ca_file=config.options.get("ca_file", ""),
    )


class RestSession:
    """Query one HTTP device. `parse` reads an answer; a Garbled it raises is given the question's
    name.
    """

    def __init__(self, link: HttpLink) -> None:
        self._link = link

    async def ask(
        self,
        path: str,
        parse: Callable[[Answer], T],
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """GET `path`. Raises: Unreachable, TimedOut, Garbled, Refused - login or rights."""
        try:
            return await self._once("GET", path, parse, b"", headers, timeout_s)
        except (Dropped, Garbled):  # repeating a query changes nothing
            return await self._once("GET", path, parse, b"", headers, timeout_s)

    async def send(
        self,
        method: str,
        path: str,
        parse: Callable[[Answer], T],
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> T:
        """Request a change; never sent twice. Raises: as `ask`."""
        return await self._once(method, path, parse, body, headers, timeout_s)

    async def close(self) -> None:
        await self._link.close()

    async def _once(
        self,
        method: str,
        path: str,
        parse: Callable[[Answer], T],
        body: bytes,
        headers: Mapping[str, str] | None,
        timeout_s: float | None,
    ) -> T:
        question = f"{method} {path}"
        answer = await self._link.exchange(
            method, path, question=question, body=body, headers=headers, timeout_s=timeout_s
        )
        # the session of the cookie is over: nothing was done
        if answer.status == 401 and self._link.remembered:
            self._link.forget()
            answer = await self._link.exchange(
                method, path, question=question, body=body, headers=headers, timeout_s=timeout_s
            )
        if answer.status == 401:
            hint = "username and password of the device in the inventory"
            raise Refused(
                f"{self._link.who} refused the login of user {self._link.username!r} (HTTP 401)",
                hint=hint,
            )
        if answer.status == 403:
            text = restconf_message(403, answer.body)
            hint = (
                "a user with the right to change circuits; some are read-only over this interface"
            )
            raise Refused(
                f'{self._link.who} refused "{question}" to user {self._link.username!r}: {text}',
                hint=hint,
            )
        try:
            return parse(answer)
        except Garbled as error:
            raise Garbled(f'{self._link.who}: answer to "{question}": {error}') from error
