"""The one sink of a server and state directory, as a service: its options, what its file says of
it, and what it reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optics.errors import Usage
from optics.extras import need
from optics.plain import counted
from orchestrator.background.kind import Kind
from orchestrator.background.options import ServiceOptions, option
from orchestrator.background.state import ServiceState
from orchestrator.background.work import ServiceNote, ServiceReport
from orchestrator.settings import Settings
from orchestrator.telemetry import influxd
from orchestrator.telemetry.influx_api import InfluxTarget, target_of


@dataclass(frozen=True, slots=True)
class SinkOptions(ServiceOptions):
    """How long to follow journals."""

    stay: bool = option(False, "--stay", "Keep running when all journals are sent.")


@dataclass(frozen=True, slots=True)
class SinkState(ServiceState):
    """What a sink reports of itself. last: wall-clock seconds when points were last sent."""

    url: str = ""
    db: str = ""
    version: str = ""
    api: str = ""
    points: int = 0
    refused: int = 0
    refusal: str = ""
    last: float = 0.0

    def text(self) -> str:
        to = f", to {self.url}, database {self.db}" if self.url else ""
        return f"{self.state}, {self.where}{to}; {counted(self.points, 'point')} sent"


@dataclass(frozen=True, slots=True)
class SinkReport(ServiceReport):
    """What a sink sent."""

    points: int
    refused: int

    def text(self) -> str:
        return f"{counted(self.points, 'point')} sent, {self.refused} refused"


def server_dir(state_dir: Path) -> Path:
    """The folder of the private influxd."""
    return state_dir / "influx"


def configured(settings: Settings) -> InfluxTarget:
    """The InfluxDB that journals are copied to. Raises: Usage - none is configured."""
    if (target := target_of(settings)) is None:
        text = "no InfluxDB is configured (telemetry.influx.url is none); journals are complete without it"
        raise Usage(text, hint=_other(settings) or "set telemetry.influx.url to auto or a URL")
    need("influx", "copies of journals", "influxdb_client")
    return target


def begin(settings: Settings, options: SinkOptions) -> None:
    """Start the private server, if journals go there. Raises: Missing - it is not installed."""
    if configured(settings).private:
        start_private(settings)


def start_private(settings: Settings) -> influxd.Private:
    """The private server, started if it does not run. Raises: Missing - it is not installed."""
    return influxd.start_influxd(server_dir(settings.state_dir))


def end_private(settings: Settings, stopped: SinkState | None) -> ServiceNote:
    """Stop the private server, if journals went there. Journals and data are kept."""
    if not configured(settings).private:
        return ServiceNote(hint=_other(settings))
    was = influxd.stop_influxd(server_dir(settings.state_dir))
    return ServiceNote("the private InfluxDB was stopped" if was else "", {"server": was}, done=was)


def _other(settings: Settings) -> str:
    """What to do about a private server that another setting started."""
    present = influxd.running_influxd(server_dir(settings.state_dir))
    return (
        f"a private InfluxDB runs at {present.url}; to stop it: TESTBED_INFLUX_URL=auto testbed service stop sink"
        if present
        else ""
    )


SINK = Kind(
    "sink",
    SinkState,
    "Copy journals to InfluxDB.",
    "orchestrator.telemetry.sink:run_sink",
    SinkOptions,
    """
testbed service start sink         with telemetry.influx.url auto, the private InfluxDB, too
testbed service run sink --stay    for systemd
testbed service stop sink          and the private InfluxDB; journals and data are kept
""",
    """
Commands that use the lab start it as well. It ends when all journals are sent. Set telemetry.influx.url in testbed.toml to `auto`
or a URL. `testbed telemetry status` shows how much is still to be sent; unsent points are sent when a sink runs again.
""",
    begin="orchestrator.telemetry.process:begin",
    after="orchestrator.telemetry.process:end_private",
    of="server",
    server=lambda settings: configured(settings).key,
    kept=True,
    lowly=True,
    stop_s=20.0,
)
