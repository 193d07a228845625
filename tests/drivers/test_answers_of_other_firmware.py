"""Answers that public clients met and the usual firmware does not give: no result, one entry for a
list, another model.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import tty
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from drivers.registry import open_device
from drivers.wire import wsp
from optics import (
    BadFile,
    Change,
    DeviceConfig,
    FrequencySlot,
    Garbled,
    Port,
    PortState,
    SpectralRoute,
    TimedOut,
)
from tests.drivers.scripted import Answers, Request, cross, http, http_device, spoken_to


@asynccontextmanager
async def opened(
    driver: str, answers: Answers, **options: str
) -> AsyncIterator[tuple[Any, list[Request]]]:
    async with http_device(answers) as (address, heard):
        more = {"patience_s": "0.3", **options}
        device = open_device(
            DeviceConfig("ocs1", driver, address, "admin", "root", {"settle_s": 0.01}, 1.0, more)
        )
        try:
            yield device, heard
        finally:
            await device.close()


# ---- WaveShaper

# REAL: a 1000A with firmware 1.3.1; it has `msg`, and neither `rc` nor `rctext`.
ABOUT = {
    "extmodel": "",
    "ip": "169.254.6.8",
    "model": "1000A",
    "msg": "OK",
    "partno": "1247895",
    "portcount": 1,
    "sno": "201673",
}
RANGE = {"startfreq": 191.05, "stopfreq": 196.475, "ver": "1.3.1"}


class Shaper:
    """A 1000A that answers uploads with `message`, and does them if it `obeys`."""

    def __init__(self, message: str, obeys: bool) -> None:
        self.reported, self.obeys, self.uploads = message, obeys, 0
        self.profile = wsp.write(
            wsp.Row(mhz, "60.000", "0.000", 0) for mhz in range(191_050_000, 196_475_000, 1000)
        )

    def __call__(self, request: Request) -> bytes:
        if request.path == "/waveshaper/devinfo":
            return http(200, json.dumps(ABOUT | RANGE))
        if request.path == "/waveshaper/getprofile":
            return http(200, self.profile)
        self.uploads += 1
        if self.obeys:
            self.profile = json.loads(request.body)["wsp"]
        return http(200, self.reported)


def route(low_ghz: int) -> SpectralRoute:
    edge = 193_000_000 + low_ghz * 1000
    return SpectralRoute(Port("ocs1", "in"), Port("ocs1", "1"), FrequencySlot(edge, edge + 50_000))


WITHOUT_RC = ['{"msg": "OK"}', '{"rc": null, "rctext": "Success"}', "{}"]


@pytest.mark.parametrize("message", WITHOUT_RC)
async def test_an_upload_without_a_result_counts_by_what_is_read_back(message: str) -> None:
    shaper = Shaper(message, obeys=True)
    routes = frozenset(route(60 * n) for n in range(6))
    async with opened("waveshaper-http", shaper, slices="6") as (device, _):
        identity = await device.identify()
        assert (identity.model, identity.serial, identity.firmware, identity.egress) == (
            "1000A",
            "201673",
            "1.3.1",
            ("1",),
        )
        outcome = await device.apply(Change("ocs1", frozenset(), routes))
        assert not outcome.failed and outcome.observed == routes
        assert shaper.uploads == 6  # each part once


@pytest.mark.parametrize("message", WITHOUT_RC)
async def test_an_upload_without_a_result_that_is_not_read_back_failed(message: str) -> None:
    async with opened("waveshaper-http", Shaper(message, obeys=False)) as (device, _):
        outcome = await device.apply(Change("ocs1", frozenset(), frozenset({route(0)})))
        assert outcome.observed == frozenset() and outcome.failed[route(0)].startswith(
            "not reported after"
        )


# ---- Polatis over RESTCONF

COLLECTION = "/api/data/optical-switch:cross-connects"


class Polatis:
    """One circuit; `form`: how the map is written; `both`: whether the key of an entry is ingress
    and egress.
    """

    def __init__(self, form: str, both: bool = False) -> None:
        self.form, self.both, self.pairs = form, both, {1: 17}

    def __call__(self, request: Request) -> bytes:
        if request.path == COLLECTION and request.method == "GET":
            row = {"ingress": 1, "egress": 17}
            return http(200, self.form % json.dumps(row)) if self.pairs else http(204)
        if request.path == "/api/data/optical-switch:port-config":
            return http(
                200,
                '{"optical-switch:port-config": {"port": {"port-id": 1, "status": "DISABLED", "label": ""}}}',
            )
        assert request.method == "DELETE"
        key = re.fullmatch(rf"{COLLECTION}/pair=(\d+)(,\d+)?", request.path)
        assert key
        if bool(key[2]) is not self.both:
            error = {"error-tag": "invalid-value", "error-message": "number of keys"}
            return http(400, json.dumps({"ietf-restconf:errors": {"error": error}}))
        return http(204) if self.pairs.pop(int(key[1]), None) else http(404)


FORMS = [
    '{"optical-switch:cross-connects": {"pair": %s}}',
    '{"optical-switch:cross-connects": {"pair": [%s]}}',
    '{"optical-switch:cross-connects": {"optical-switch:pair": %s}}',
    '{"optical-switch:pair": %s}',
    '{"optical-switch:pair": [%s]}',
]


@pytest.mark.parametrize("form", FORMS)
async def test_one_entry_may_stand_for_a_list(form: str) -> None:
    circuit = frozenset({cross(1, 17)})
    async with opened("polatis-restconf", Polatis(form)) as (device, _):
        assert await device.read() == circuit
        assert await device.port_states([Port("ocs1", "1")]) == {
            Port("ocs1", "1"): PortState.DISABLED
        }
        outcome = await device.apply(Change("ocs1", circuit, frozenset()))
        assert not outcome.failed and outcome.observed == frozenset()


async def test_an_entry_is_deleted_by_both_ports_where_the_ingress_alone_is_no_key() -> None:
    circuit = frozenset({cross(1, 17)})
    switch = Polatis(FORMS[1], both=True)
    async with opened("polatis-restconf", switch) as (device, heard):
        for _ in range(2):
            switch.pairs = {1: 17}
            outcome = await device.apply(Change("ocs1", circuit, frozenset()))
            assert not outcome.failed and outcome.observed == frozenset()
        deleted = [
            request.path.rpartition("/")[2] for request in heard if request.method == "DELETE"
        ]
        assert deleted == ["pair=1", "pair=1,17", "pair=1,17"]  # it remembers


async def test_an_entry_that_is_refused_by_either_key_fails_in_the_switch_s_words() -> None:
    def stubborn(request: Request) -> bytes:
        text = '{"ietf-restconf:errors": {"error": {"error-tag": "access-denied", "error-message": "locked"}}}'
        return http(400, text) if request.method == "DELETE" else switch(request)

    switch, circuit = Polatis(FORMS[0]), cross(1, 17)
    async with opened("polatis-restconf", stubborn) as (device, _):
        outcome = await device.apply(Change("ocs1", frozenset({circuit}), frozenset()))
        assert outcome.observed == {circuit} and outcome.failed[circuit].endswith(
            "HTTP 400: access-denied: locked"
        )


# ---- DiCon

# DOC: the manual of the MXS-9100. CODE: a module with two fields, as a lab's client notes it;
# python-ivi's GP700.
OTHERS = {
    "DiCon Fiberoptics Inc, MG4, 12345, 1.0": "MG4 of DiCon Fiberoptics Inc",
    "DiCon Fiberoptics Inc, MEMS UFA": "MEMS UFA of DiCon Fiberoptics Inc",
    "DiCon Fiberoptics Inc,GP700,X1,2.0": "GP700 of DiCon Fiberoptics Inc",
}


def only_identity(identity: str, end: bytes) -> Any:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        output = b""
        while data := await reader.read(4096):
            output += data
            if b"*IDN?" in output:
                output = b""
                for byte in identity.encode() + end:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0)
        writer.close()

    return talk


@pytest.mark.parametrize("end", [b"\r", b"\n"])
@pytest.mark.parametrize("identity", OTHERS)
async def test_another_model_is_named_and_not_called_silent(identity: str, end: bytes) -> None:
    async with spoken_to(only_identity(identity, end), "dicon-scpi") as device:
        for asked in (device.identify, device.read):
            with pytest.raises(
                Garbled, match=f"ocs1: this is a {OTHERS[identity]}; only the GP600"
            ):
                await asked()


async def test_a_gp600_that_is_silent_is_silent() -> None:
    async with spoken_to(
        only_identity("Dicon Fiberoptics Inc, GP600, 19A0M10D0117, 7.0", b"\n"), "dicon-scpi"
    ) as device:
        with pytest.raises(TimedOut, match="X1 DIM"):
            await device.read()


@pytest.mark.parametrize("identity", ["DiCon", "a, b, c", "a,", "a, b, c, d, e"])
async def test_an_identity_of_another_form_is_garbled(identity: str) -> None:
    async with spoken_to(only_identity(identity, b"\r"), "dicon-scpi") as device:
        with pytest.raises(Garbled, match="not an identity"):
            await device.identify()


@pytest.mark.parametrize(
    ("option", "end"), [({}, b"\n"), ({"line_end": "cr"}, b"\r"), ({"line_end": "crlf"}, b"\r\n")]
)
async def test_lines_end_as_the_inventory_says(option: dict[str, str], end: bytes) -> None:
    heard = b""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        while data := await reader.read(4096):
            heard += data
            writer.write(b"DiCon Fiberoptics Inc, MG4, 1, 1\r" if heard.endswith(end) else b"")

    async with spoken_to(talk, "dicon-scpi", options=option) as device:
        with pytest.raises(Garbled, match="MG4"):
            await device.identify()
    assert heard == b"*IDN?" + end


async def test_a_serial_line_is_spoken_to_with_cr_lf() -> None:
    loop, heard = asyncio.get_running_loop(), b""
    master, slave = pty.openpty()
    tty.setraw(slave)

    def answer() -> None:
        nonlocal heard
        heard += os.read(master, 4096)
        if heard.endswith(b"\r\n"):
            os.write(master, b"DiCon Fiberoptics Inc, MG4, 1, 1\r")

    loop.add_reader(master, answer)
    device = open_device(
        DeviceConfig("ocs1", "dicon-scpi", f"serial://{os.ttyname(slave)}", timeout_s=1.0)
    )
    try:
        with pytest.raises(Garbled, match="MG4"):
            await device.identify()
    finally:
        await device.close()
        loop.remove_reader(master)
        os.close(slave)
        os.close(master)
    assert heard == b"*IDN?\r\n"


def test_an_unknown_line_end_is_refused() -> None:
    with pytest.raises(BadFile, match="line_end 'no': cr, crlf, lf"):
        open_device(
            DeviceConfig("ocs1", "dicon-scpi", "tcp://127.0.0.1:9", options={"line_end": "no"})
        )
