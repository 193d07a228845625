"""The device's identity and what it reports: no check here moves light."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from urllib.parse import urlsplit

from conformance.check import Effect, check
from conformance.outcome import NotTried, want
from conformance.strangers import nonsense, unreachable
from conformance.subject import Subject, names_device, refused
from drivers.api import Attenuator, Persistence, PortControl, PowerMeter
from drivers.registry import open_device
from optics import CrossConnect, DeviceConfig, Port, SpectralRoute, Unreachable

READS = Effect.READS
WRONG = "wr0ng-Passw0rd"


@check(
    "a device identifies itself and lists its ports", "identify", effect=READS, truth=False, ports=0
)
async def reports_its_identity(s: Subject) -> None:
    identity = await s.device.identify()
    for field in ("vendor", "model", "serial", "firmware"):
        want(getattr(identity, field), f"the identity has no {field}: {identity}")
    for side in ("ingress", "egress"):
        labels = getattr(identity, side)
        want(labels, f"no {side} ports")
        want(len(set(labels)) == len(labels), f"an {side} label is listed twice: {labels}")
    want(await s.device.identify() == identity, "a second query reports another identity")


@check(
    "a device reports only settings of its own kind, between its own ports",
    "read",
    effect=READS,
    truth=False,
    ports=0,
)
async def reports_its_settings(s: Subject) -> None:
    kind = SpectralRoute if s.spectral else CrossConnect
    for setting in await s.device.read():
        want(
            isinstance(setting, kind),
            f"{setting} is not a {kind.__name__}, but traits.spectral is {s.spectral}",
        )
        want(
            {setting.ingress.device, setting.egress.device} == {s.name},
            f"{setting} is not on {s.name}",
        )
        want(
            setting.ingress.label in s.identity.ingress,
            f"{setting}: {setting.ingress} is not among the ingress ports it listed",
        )
        want(
            setting.egress.label in s.identity.egress,
            f"{setting}: {setting.egress} is not among the egress ports it listed",
        )


@check("a second session reports the same connections", "read", effect=READS, truth=False, ports=0)
async def a_second_session_sees_the_same(s: Subject) -> None:
    async with s.another() as other:
        want(
            await other.read() == await s.device.read(), "two sessions report different connections"
        )


@check("queries write nothing", "read", effect=READS, ports=0)
async def asking_writes_nothing(s: Subject) -> None:
    before = s.known.writes
    await s.device.identify()
    await s.device.read()
    want(s.known.writes == before, f"{s.known.writes - before} writes")


@check("a change to the present state writes nothing", "change", truth=False, ports=0)
async def nothing_to_change(s: Subject) -> None:
    outcome = await s.apply(add=s.foreign)
    want(
        (outcome.writes, dict(outcome.failed)) == (0, {}),
        f"{outcome.writes} writes, failed: {dict(outcome.failed)}",
    )
    want(outcome.observed == s.foreign, "it reports other connections than before")


@check(
    "an address where nothing answers raises Unreachable, which names the device",
    "unreachable",
    effect=READS,
    truth=False,
    ports=0,
)
async def nobody_answers(s: Subject) -> None:
    async with unreachable(s.config.address) as address:
        device = open_device(replace(s.config, address=address, timeout_s=s.quick_s * 2))
        try:
            error = await refused(device.read)
        finally:
            await device.close()
    want(isinstance(error, Unreachable), f"wanted Unreachable, got {type(error).__name__}: {error}")
    assert error is not None
    names_device(s, error)


@check(
    "a foreign protocol at the address raises an error that names the device",
    "unreachable",
    effect=READS,
    truth=False,
    ports=0,
)
async def somebody_else_answers(s: Subject) -> None:
    async with nonsense(s.config.address) as address:
        device = open_device(replace(s.config, address=address, timeout_s=s.quick_s))
        try:
            error = await refused(device.read)
        finally:
            await device.close()
    want(error is not None, "nonsense was accepted as a report of connections")
    assert error is not None
    names_device(s, error)


@check(
    "a device that was closed twice can be used again",
    "sessions",
    effect=READS,
    truth=False,
    ports=0,
)
async def closed_twice(s: Subject) -> None:
    async with s.another() as other:
        first = await other.read()
        await other.close()
        await other.close()
        want(await other.read() == first, "after closing it reports other connections")


@check("a wrong password is refused and disclosed nowhere", "login", effect=READS, ports=0)
async def wrong_password(s: Subject) -> None:
    _ = s.known  # real devices lock accounts
    async with s.another(password=WRONG) as other:
        error = await refused(other.read)
    want(error is not None, "a wrong password was accepted")
    assert error is not None
    names_device(s, error)
    _password_absent(error)


@check(
    "whatever fails during login, the password appears in no error and no log",
    "login",
    effect=READS,
    ports=0,
)
async def passwords_are_kept(s: Subject) -> None:
    lines: list[str] = []
    collector = _LogCollector(lines)
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(collector)
    root.setLevel(logging.DEBUG)
    try:
        for kind in ("hang", "garble", "drop-after", "refuse", "twice"):
            async with s.another(password=WRONG, timeout_s=s.quick_s) as other:
                want(WRONG not in repr(other), "the password is in the device's repr")
                with s.known.wrong(kind):
                    error = await refused(other.read)
                if error is not None:
                    _password_absent(error)
    finally:
        root.removeHandler(collector)
        root.setLevel(level)
    want(not any(WRONG in line for line in lines), "the password is in a log line")


@check("an unknown host key aborts the connection", "login", effect=READS, truth=False, ports=0)
async def host_keys_are_checked(s: Subject) -> None:
    if s.scheme not in ("ssh", "netconf"):
        raise NotTried("no host keys over this transport")
    with tempfile.NamedTemporaryFile("w", suffix="-known-hosts") as file:
        for line in ("", _another_key(s.config)):
            file.truncate(0)
            file.write(line)
            file.flush()
            async with s.another(options={"known_hosts": file.name}) as other:
                error = await refused(other.read)
            want(
                isinstance(error, Unreachable),
                f"wanted Unreachable, got {type(error).__name__}: {error}",
            )
            assert error is not None
            names_device(s, error)


def _another_key(config: DeviceConfig) -> str:
    """A known_hosts line with a key that is not the device's."""
    import paramiko

    parts = urlsplit(config.address)
    key = paramiko.ECDSAKey.generate()
    return f"[{parts.hostname}]:{parts.port} {key.get_name()} {key.get_base64()}\n"


class _LogCollector(logging.Handler):
    """Keeps every log line."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


def _password_absent(error: BaseException) -> None:
    """Check that the password appears in no error of the chain. Raises: Failed."""
    chain: BaseException | None = error
    while chain is not None:
        want(WRONG not in f"{chain!s} {chain!r}", "the password is in the error")
        chain = chain.__cause__ or chain.__context__


@check(
    "power is read without writing, for existing ports only",
    "power",
    effect=READS,
    truth=False,
    ports=0,
)
async def power_is_read(s: Subject) -> None:
    assert isinstance(s.device, PowerMeter)
    asked = [Port(s.name, label) for label in (*s.identity.egress[:4], *s.identity.ingress[:2])]
    levels = await s.device.power(asked)
    want(levels.keys() <= set(asked), "levels of ports that were not requested")
    want(all(-80.0 < level < 40.0 for level in levels.values()), f"implausible levels: {levels}")


@check("port states are read without writing", "port control", effect=READS, truth=False, ports=0)
async def port_states_are_read(s: Subject) -> None:
    assert isinstance(s.device, PortControl)
    asked = [Port(s.name, label) for label in (*s.identity.egress[:4], *s.identity.ingress[:2])]
    want(
        (await s.device.port_states(asked)).keys() <= set(asked),
        "states of ports that were not requested",
    )


@check("attenuations are read without writing", "attenuator", effect=READS, truth=False, ports=0)
async def attenuations_are_read(s: Subject) -> None:
    assert isinstance(s.device, Attenuator)
    levels = await s.device.attenuation([Port(s.name, label) for label in s.identity.egress])
    want(all(level >= 0 for level in levels.values()), f"negative attenuation: {levels}")


@check(
    "the device reports what it does when power returns",
    "persistence",
    effect=READS,
    truth=False,
    ports=0,
)
async def reports_what_persists(s: Subject) -> None:
    assert isinstance(s.device, Persistence)
    want(await s.device.persistence(), "it reports nothing")
