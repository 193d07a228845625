"""A WaveShaper over HTTP, by a client of its own: profiles, their rules, what the glass does."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from emulators.devices.families import device_from_config
from emulators.devices.server import DeviceServer

SETTLE_S = 0.05


class Shaper:
    def __init__(self, server: DeviceServer, client: httpx.AsyncClient) -> None:
        self.server, self.client = server, client

    async def load(self, **profile: object) -> tuple[int, str]:
        answer = await self.client.post("/waveshaper/loadprofile", json=profile)
        assert answer.status_code == 200
        reply = answer.json()
        assert set(reply) == {"rc", "rctext", "sno"}
        return reply["rc"], reply["rctext"]

    async def rows(self) -> dict[str, tuple[float, float, int]]:
        text = (await self.client.get("/waveshaper/getprofile")).text
        cells = (line.split("\t") for line in text.splitlines())
        return {
            freq: (float(attenuation), float(phase), int(port))
            for freq, attenuation, phase, port in cells
        }

    def lit(self) -> set[tuple[object, ...]]:
        return set(self.server.plant.lit(self.server.loop.time()))


@asynccontextmanager
async def served(**overrides: object) -> AsyncIterator[Shaper]:
    plant, dialect = device_from_config(
        "wss1", "waveshaper-http", {"settle_s": SETTLE_S, **overrides}, 1
    )
    server = DeviceServer("wss1", dialect, plant, scheme="http", chunking="split")
    await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        yield Shaper(server, client)
    await server.stop()


@pytest.fixture
async def shaper() -> AsyncIterator[Shaper]:
    async with served() as made:
        yield made


Make = Callable[..., Awaitable[Shaper]]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:
        yield lambda **overrides: stack.enter_async_context(served(**overrides))


EARLY = {
    "size": "1x1",
    "model": "1000A",
    "firmware": "1.3.1",
    "start_thz": 191.05,
    "stop_thz": 196.475,
}


def wsp(first_ghz: int, count: int, port: int, attenuation: float = 0.0, phase: float = 0.0) -> str:
    return "".join(
        f"{(first_ghz + n) / 1000:.3f}\t{attenuation}\t{phase}\t{port}\n" for n in range(count)
    )


async def test_it_says_what_it_is(shaper: Shaper) -> None:
    info = (await shaper.client.get("/waveshaper/devinfo")).json()
    assert set(info) == {
        "model",
        "sno",
        "ver",
        "startfreq",
        "stopfreq",
        "ip",
        "portcount",
        "rctext",
    }
    assert (info["startfreq"], info["stopfreq"], info["portcount"]) == (191.25, 196.275, 4)


async def test_a_profile_is_read_back_as_it_was_loaded(shaper: Shaper) -> None:
    assert await shaper.load(type="wsp", wsp=wsp(193_075, 50, 2, 1.5, 7.0)) == (0, "success")
    rows = await shaper.rows()
    assert len(rows) == 5025
    assert rows["193.075"] == (1.5, pytest.approx(0.717, abs=0.001), 2)  # 7 rad modulo 2 pi
    assert (rows["193.124"][2], rows["193.125"][2], rows["193.074"][2]) == (2, 0, 0)
    assert shaper.lit() == {("in", "2", 193_075_000, 193_125_000)}


async def test_the_answer_comes_when_the_light_has_settled(shaper: Shaper) -> None:
    await shaper.load(type="bandpass", port=1, center=193.1, bandwidth=0.05, attn=0)
    assert shaper.lit() == {("in", "1", 193_075_000, 193_125_000)}
    assert shaper.server.plant.writes == 1


async def test_a_slice_leaves_the_rest_of_the_spectrum_alone(shaper: Shaper) -> None:
    await shaper.load(type="wsp", wsp=wsp(193_000, 50, 1))
    (before,) = shaper.server.plant.bands()
    await shaper.load(type="wsp", wsp=wsp(193_100, 50, 3))
    assert shaper.lit() == {
        ("in", "1", 193_000_000, 193_050_000),
        ("in", "3", 193_100_000, 193_150_000),
    }
    assert shaper.server.plant.bands()[0] is before


@pytest.mark.parametrize(
    ("attenuation", "shown", "passes"),
    [
        (-3.0, 0.0, True),
        (30.0, 30.0, True),
        (39.9, 39.9, True),
        (40.0, 40.0, True),
        (40.1, 40.1, False),
    ],
)
async def test_attenuation_below_nothing_is_nothing_and_above_forty_is_a_block(
    shaper: Shaper, attenuation: float, shown: float, passes: bool
) -> None:
    assert await shaper.load(type="wsp", wsp=wsp(193_000, 20, 1, attenuation)) == (0, "success")
    assert (await shaper.rows())["193.005"][0] == shown
    shaper.server.plant.los_dbm = -60.0
    assert bool(shaper.server.plant.bands()) is passes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty profile"),
        (wsp(193_000, 9, 1), "port bandwidth below 10 GHz"),
        (wsp(193_000, 10, 1) + wsp(193_011, 10, 1), "line 11: frequencies not contiguous"),
        (wsp(193_000, 10, 5), "line 1: invalid port"),
        (wsp(191_249, 10, 1), "line 1: frequency out of range"),
        # the row at stopfreq is taken, the one after it not
        (wsp(196_266, 11, 1), "line 11: frequency out of range"),
        ("193.00\t0\t0\t1\n", "line 1: invalid number"),
        ("193.0005\t0\t0\t1\n", "off the grid"),
        ("193.000 0 0 1\n", "line 1: 4 columns expected"),
        ("freq\tattn\tphase\tport\n", "line 1: invalid number"),
        ("193.000\tnan\t0\t1\n", "line 1: invalid number"),
    ],
)
async def test_a_profile_that_breaks_a_rule_is_refused_in_rc_and_changes_nothing(
    shaper: Shaper, text: str, message: str
) -> None:
    rc, sentence = await shaper.load(type="wsp", wsp=text)
    assert rc != 0
    assert message in sentence
    assert not shaper.server.plant.bands()
    assert shaper.server.plant.writes == 0


async def test_the_built_in_filters(shaper: Shaper) -> None:
    assert await shaper.load(type="transmit", port=2) == (0, "success")
    assert shaper.lit() == {("in", "2", 191_250_000, 196_275_000)}
    assert await shaper.load(type="bandstop", port=2, center=193.1, bandwidth=0.1) == (0, "success")
    assert shaper.lit() == {
        ("in", "2", 191_250_000, 193_050_000),
        ("in", "2", 193_150_000, 196_275_000),
    }
    assert await shaper.load(type="gaussian", port=1, center=193.1, bandwidth=0.05, attn=1) == (
        0,
        "success",
    )
    rows = await shaper.rows()
    assert rows["193.100"][0] == pytest.approx(1.0, abs=0.01)
    assert rows["193.124"][0] == pytest.approx(4.0, abs=0.3)
    assert await shaper.load(type="blockall") == (0, "success")
    assert shaper.lit() == set()


@pytest.mark.parametrize(
    "asked",
    [
        {"type": "notch"},
        {},
        {"type": "bandpass", "port": 1},
        {"type": "bandpass", "port": 0, "center": 193.1, "bandwidth": 0.05},
        {"type": "bandpass", "port": True, "center": 193.1, "bandwidth": 0.05},
        {"type": "bandpass", "port": 1, "center": "193.1", "bandwidth": 0.05},
        {"type": "bandpass", "port": 1, "center": 193.1, "bandwidth": 0.005},
        {"type": "wsp"},
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_in_rc(
    shaper: Shaper, asked: dict[str, object]
) -> None:
    assert (await shaper.load(**asked))[0] < 0
    assert shaper.lit() == set()


async def test_other_paths_methods_and_bodies_get_the_status_of_http(shaper: Shaper) -> None:
    assert (await shaper.client.get("/waveshaper")).status_code == 404
    assert (await shaper.client.post("/waveshaper/devinfo")).status_code == 405
    answer = await shaper.client.post("/waveshaper/loadprofile", content=b"{")
    assert (answer.status_code, answer.json()["rc"] < 0) == (200, True)


async def test_a_refusal_stands_in_rc_and_an_accepted_nothing_shows_when_read_back(
    shaper: Shaper,
) -> None:
    shaper.server.add_fault("refuse", on="write", count=1)
    assert (await shaper.load(type="transmit", port=1))[0] < 0
    shaper.server.add_fault("silent-failure", on="write", count=1)
    assert (await shaper.load(type="transmit", port=1)) == (0, "success")
    assert {port for _, _, port in (await shaper.rows()).values()} == {0}
    assert shaper.lit() == set()


async def test_the_profile_of_a_stuck_port_shows_what_passes(shaper: Shaper) -> None:
    await shaper.load(type="wsp", wsp=wsp(193_000, 50, 1))
    shaper.server.add_fault("stuck-port", port="1")
    assert await shaper.load(type="blockall") == (0, "success")
    assert (await shaper.rows())["193.010"][2] == 1


def test_a_waveshaper_has_one_port_or_four() -> None:
    assert len(device_from_config("w", "waveshaper-http", {"size": "1x1"})[0].egress) == 1
    with pytest.raises(ValueError, match="1 or 4 ports"):
        device_from_config("w", "waveshaper-http", {"size": "1x9"})


# ---- captures and the vendor's own client


async def test_firmware_of_a_1000a_says_what_it_is_byte_by_byte(make: Make) -> None:
    early = await make(**EARLY, serial="201673")
    reply = (await early.client.get("/waveshaper/devinfo")).json()
    assert repr(reply) == (
        "{'extmodel': '', 'ip': '192.168.1.2', 'model': '1000A', 'msg': 'OK', 'partno': '1247895', 'portcount': 1,"
        " 'sno': '201673', 'startfreq': 191.05, 'stopfreq': 196.475, 'ver': '1.3.1'}"
    )


async def test_firmware_of_a_1000a_takes_a_band_of_seven_ghz_and_the_manual_does_not(
    make: Make,
) -> None:
    def opened(port_ghz: range) -> str:
        return "".join(
            f"{ghz / 1000:.3f}\t0.00\t0.00\t{int(ghz in port_ghz)}\n"
            for ghz in range(191_050, 196_475)
        )

    early = await make(**EARLY)
    assert await early.load(type="wsp", wsp=opened(range(193_988, 193_995))) == (0, "success")
    assert early.lit() == {("in", "1", 193_988_000, 193_995_000)}
    strict = await make(**EARLY, least_ghz=10)
    assert (await strict.load(type="wsp", wsp=opened(range(193_988, 193_995))))[
        1
    ] == "port bandwidth below 10 GHz at 193.988"


@pytest.mark.parametrize(("start_thz", "stop_thz"), [(191.25, 196.275), (191.05, 196.475)])
async def test_the_vendors_upload_example_works_on_any_range(
    make: Make, start_thz: float, stop_thz: float
) -> None:
    """Its rows are evenly spaced from startfreq to stopfreq; their number is cut to a whole, so
    that they are not 1 GHz apart.
    """
    device = await make(size="1x1", start_thz=start_thz, stop_thz=stop_thz)
    count = int((stop_thz - start_thz) / 0.001 + 1)
    rows = []
    for n in range(count):
        thz = start_thz + n * (stop_thz - start_thz) / (count - 1)
        rows.append(
            f"{thz:.4f}\t{50 * math.sin(2 * math.pi / 0.5 * (thz - 193)) ** 2:.4f}\t0.0000\t1\n"
        )
    assert rows[-1].startswith(f"{stop_thz:.4f}\t")
    body = json.dumps({"type": "wsp", "wsp": "".join(rows)}).encode()
    # no type of content is given
    reply = (await device.client.post("/waveshaper/loadprofile", content=body)).json()
    assert (reply["rc"], reply["rctext"]) == (0, "success")
    read = await device.rows()
    wide = round((stop_thz - start_thz) * 1000)
    assert list(read) == [f"{start_thz + n / 1000:.3f}" for n in range(wide)]
    assert {port for _, _, port in read.values()} <= {0, 1}
    # the rows nearest by, up to half a GHz away
    for thz in ("192.500", "193.000", "193.763", "196.000"):
        exact = [
            50 * math.sin(2 * math.pi / 0.5 * (float(thz) + off - 193)) ** 2
            for off in (-0.0005, 0.0, 0.0005)
        ]
        assert read[thz][2] == 0 or min(exact) - 0.01 <= read[thz][0] <= max(exact) + 0.01


async def test_rows_that_drift_leave_no_frequency_of_the_grid_out(shaper: Shaper) -> None:
    drifting = "".join(f"{193 + n * 0.00110:.5f}\t0\t0\t1\n" for n in range(50))
    assert await shaper.load(type="wsp", wsp=drifting) == (0, "success")
    assert shaper.lit() == {("in", "1", 193_000_000, 193_055_000)}


async def test_an_upload_can_be_answered_by_a_word_and_no_number(make: Make) -> None:
    device = await make(**EARLY, result="msg")
    answer = await device.client.post(
        "/waveshaper/loadprofile", json={"type": "transmit", "port": 1}
    )
    assert answer.json() == {"msg": "OK"}
    assert device.lit() == {("in", "1", 191_050_000, 196_475_000)}
    answer = await device.client.post(
        "/waveshaper/loadprofile", json={"type": "transmit", "port": 2}
    )
    assert answer.json() == {"msg": "invalid port"}
    with pytest.raises(ValueError, match="none of rc, msg"):
        await make(result="text")
