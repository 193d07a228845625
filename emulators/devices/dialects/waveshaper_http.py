"""WaveShaper programmable filters (Finisar, II-VI, Coherent) over HTTP.

CODE (cdfredrick's AstroComb, a public client): `GET /waveshaper/devinfo` with its keys,
`GET /waveshaper/getprofile` with WSP text, `POST /waveshaper/loadprofile` with its types and keys;
the result is `rc` in the answer, not the status of HTTP. DOC: the rules of a profile
(waveshaper_wsp.py); an upload passes through intermediate states for a few to few tens of
milliseconds; the vendor advises to upload in slices, hence rows that an upload does not name stay
(U, inferred). REAL (a lab's 1000A of firmware 1.3.1): its devinfo has other keys, and its lab loads
a profile with 7 GHz for the port, narrower than DOC allows. U, and chosen so that they ask most of
a driver:

- the answer to an upload comes when the light has settled, and until then `getprofile` shows the
  old profile;
- whatever an upload names is shaken by it, changed or not; numbers of `rc` below 0 and their texts;
  what blocked rows show;
- the profile survives a power cycle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any, Literal, cast

from emulators.devices.dialects import waveshaper_wsp as wsp
from emulators.devices.dialects.base import AnyDialect, Session
from emulators.devices.dialects.finisar_serial import one_common
from emulators.devices.dialects.http import HttpDialect, Request, Response
from emulators.devices.family import Family
from emulators.optics.light import Band
from emulators.optics.spectrum import C_BAND_MHZ, SpectralPlant

FINE, FAILED, BAD_REQUEST, BAD_PROFILE = 0, -1, -2, -3  # U, but that 0 is success
TRANSIENT_S = (0.010, 0.030)  # DOC: few to few tens of milliseconds
TYPES = frozenset({"wsp", "blockall", "transmit", "bandpass", "bandstop", "gaussian"})  # CODE


class WaveshaperHttp(HttpDialect[tuple[tuple[int, wsp.Row], ...]]):
    """One WaveShaper.

    start_thz, stop_thz: the spectrum it shapes. firmware: 1.x has the keys of 1.3.1 in its devinfo
    (REAL; that all of 1.x has them is U). least_ghz: the narrowest band of a port, by default 1 on
    firmware 1.x, else the manual's 10. result: which key of the answer to an upload says how it
    went, `rc` or, as in devinfo of 1.3.1, `msg` alone (U).
    """

    writes = re.compile(r"^POST\s+/waveshaper/loadprofile\b")

    def __init__(
        self,
        plant: SpectralPlant,
        *,
        model: str | None = None,
        serial: str = "201937",
        firmware: str = "2.7.6",
        start_thz: float = C_BAND_MHZ[0] / 1e6,
        stop_thz: float = C_BAND_MHZ[1] / 1e6,
        part: str = "1247895",
        least_ghz: int | None = None,
        result: Literal["rc", "msg"] = "rc",
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        # the base asks what every plant has
        super().__init__(cast(Any, plant), seed=seed, idle_s=idle_s, boot_s=boot_s)
        self.spectrum = plant
        self.model, self.serial, self.firmware = (
            model or f"{len(plant.egress)}000A",
            serial,
            firmware,
        )
        if result not in ("rc", "msg"):
            raise ValueError(f"{plant.name}: result {result!r} is none of rc, msg")
        self.part, self.result = part, result
        self._early = firmware.startswith("1.")
        self._least_mhz = (
            least_ghz * 1_000 if least_ghz else wsp.STEP_MHZ if self._early else wsp.LEAST_MHZ
        )
        plant.range_mhz = (round(start_thz * 1e6), round(stop_thz * 1e6))
        self._profile: dict[int, wsp.Row] = dict.fromkeys(
            wsp.frequencies(plant.range_mhz), wsp.Row()
        )
        self._wait_s = 0.0

    def preset(self, low_mhz: int, high_mhz: int, port: int, attenuation_db: float) -> None:
        """Let a band pass as if it had for ever. Raises ValueError."""
        if low_mhz % wsp.STEP_MHZ or high_mhz % wsp.STEP_MHZ:
            raise ValueError(f"{self.plant.name}: preset: edges are whole GHz")
        self.spectrum.preset(
            {(self.plant.ingress[0], str(port), low_mhz, high_mhz): attenuation_db}
        )
        self._profile |= dict.fromkeys(
            range(low_mhz, high_mhz, wsp.STEP_MHZ), wsp.row(attenuation_db, 0.0, port)
        )

    # ---- the manner

    def execute(self, session: Session, command: str, now: float) -> bytes:
        reply = super().execute(session, command, now)
        session.delay_s, self._wait_s = self._wait_s, 0.0
        return reply

    def answer(self, request: Request, now: float) -> Response:
        match request.path:
            case "/waveshaper/devinfo" if request.method == "GET":
                return Response.of_json(self._info())
            case "/waveshaper/getprofile" if request.method == "GET":
                return Response(200, wsp.text(dict(self.view(now))).encode(), "text/plain")
            case "/waveshaper/loadprofile" if request.method == "POST":
                try:
                    asked = request.json()
                except ValueError:
                    return self._result(BAD_REQUEST, "invalid JSON")
                return self._upload(asked, now)
            case "/waveshaper/devinfo" | "/waveshaper/getprofile" | "/waveshaper/loadprofile":
                return self.error(405, request)
        return self.error(404, request)

    def denied(self, request: Request, now: float) -> Response:
        return (
            self._result(FAILED, "device error")
            if request.method == "POST"
            else super().denied(request, now)
        )

    def snapshot(self, now: float) -> tuple[tuple[int, wsp.Row], ...]:
        """The light path as it is, in rows; what is blocked by attenuation alone shows as it was
        uploaded.
        """
        shown = dict(self._profile)
        passing = self.spectrum.shown(now)
        rows = {mhz: band for band in passing for mhz in range(band[2], band[3], wsp.STEP_MHZ)}
        for mhz, row in self._profile.items():
            if band := rows.get(mhz):
                shown[mhz] = wsp.Row(passing[band], row.phase_rad, int(band[1]))
            elif row.passes:
                shown[mhz] = wsp.Row()
        return tuple(shown.items())

    def rebooted(self, keep: bool, now: float) -> None:
        if not keep:
            self._profile = dict.fromkeys(self._profile, wsp.Row())
        self.spectrum.restore(self._bands(self._profile), now, self.boot_s)

    # ---- the words

    def _info(self) -> dict[str, object]:
        start_mhz, stop_mhz = self.spectrum.range_mhz
        info: dict[str, object] = {
            "model": self.model,
            "sno": self.serial,
            "ver": self.firmware,
            "startfreq": start_mhz / 1e6,
            "stopfreq": stop_mhz / 1e6,
            "ip": "192.168.1.2",
            "portcount": len(self.plant.egress),
        }
        if self._early:  # REAL: these three, in alphabetical order with the others
            return dict(sorted((info | {"extmodel": "", "msg": "OK", "partno": self.part}).items()))
        return info | {"rctext": "success"}

    def _upload(self, asked: object, now: float) -> Response:
        if not isinstance(asked, Mapping) or asked.get("type") not in TYPES:
            return self._result(BAD_REQUEST, "unknown profile type")
        try:
            rows = self._rows(asked)
            merged = self._profile | dict(rows)
            if (narrow := wsp.too_narrow(merged, self._least_mhz)) is not None:
                raise wsp.BadProfile(
                    f"port bandwidth below {self._least_mhz // 1_000} GHz at {narrow / 1e6:.3f}"
                )
        except wsp.BadProfile as problem:
            return self._result(BAD_PROFILE, str(problem))
        self.wrote(now)
        self._wait_s = self.plant.settle_s
        if not self.silent:
            pieces = [
                list(piece)
                for _, piece in groupby(
                    rows.items(), key=lambda item: (item[1].port, item[1].attenuation_db)
                )
            ]
            for piece in self.some(pieces):
                self._profile |= dict(piece)
            span = (min(rows), max(rows) + wsp.STEP_MHZ)
            within = {mhz: row for mhz, row in self._profile.items() if span[0] <= mhz < span[1]}
            self.spectrum.load(self._bands(within), span, now)
        return self._result(FINE, "success")

    def _rows(self, asked: Mapping[str, object]) -> wsp.Profile:
        """Return the rows that an upload asks for. Raises: BadProfile."""
        kind, ports = str(asked["type"]), len(self.plant.egress)
        if kind == "wsp":
            if not isinstance(asked.get("wsp"), str):
                raise wsp.BadProfile("no wsp text")
            return wsp.parse(str(asked["wsp"]), self.spectrum.range_mhz, ports)
        port = asked.get("port", 1)
        if kind != "blockall" and (type(port) is not int or not 1 <= port <= ports):
            raise wsp.BadProfile("invalid port")
        centre, width, attenuation_db = (
            _number(asked, name) for name in ("center", "bandwidth", "attn")
        )
        if kind in ("bandpass", "bandstop", "gaussian") and (
            centre is None or width is None or width <= 0
        ):
            raise wsp.BadProfile("center and bandwidth needed")
        centre_mhz, width_mhz = round((centre or 0.0) * 1e6), round((width or 0.0) * 1e6)
        return wsp.predefined(
            kind,
            cast(int, port),
            centre_mhz,
            width_mhz,
            attenuation_db or 0.0,
            self.spectrum.range_mhz,
        )

    def _bands(self, profile: wsp.Profile) -> dict[Band, float]:
        common = self.plant.ingress[0]
        return {
            (common, str(port), low, high): attenuation_db
            for low, high, port, attenuation_db in wsp.runs(profile)
        }

    def _result(self, rc: int, text: str) -> Response:
        if self.result == "msg":
            return Response.of_json({"msg": "OK" if rc == FINE else text})
        return Response.of_json({"rc": rc, "rctext": text, "sno": self.serial})


def _number(asked: Mapping[str, object], name: str) -> float | None:
    value = asked.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e4 < value < 1e4:
        raise wsp.BadProfile(f"invalid {name}")
    return float(value)


def faceplate(ingress: int, egress: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return `in` and the ports 1..N. Raises ValueError: models have one port or four (DOC)."""
    if egress not in (1, 4):
        raise ValueError(f"size: a WaveShaper has 1 or 4 ports, not {egress}")
    return one_common(ingress, egress)


def _preset(dialect: AnyDialect, row: object) -> None:
    """[from THz, to THz, port] or [from THz, to THz, port, attenuation in dB]."""
    assert isinstance(dialect, WaveshaperHttp)
    if not isinstance(row, list | tuple) or len(row) not in (3, 4):
        raise ValueError(
            f"{dialect.plant.name}: preset {row!r}: wanted [from THz, to THz, port] or [..., dB]"
        )
    low_mhz, high_mhz = (round(float(edge) * 1e6) for edge in row[:2])
    dialect.preset(low_mhz, high_mhz, int(row[2]), float(row[3]) if len(row) == 4 else 0.0)


def _plant(*values: Any, **more: Any) -> SpectralPlant:
    return SpectralPlant(*values, transient_s=TRANSIENT_S, **more)


FAMILY = Family(
    "waveshaper-http",
    ("http",),
    WaveshaperHttp,
    faceplate,
    _preset,
    size="1x4",
    settle_s=0.5,  # an upload (U)
    plant=_plant,
    spectral=True,
    coupler=True,
)
