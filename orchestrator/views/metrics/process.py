"""The one service of a lab's figures: its options, what its file says of it, and what it
reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.background.kind import Kind
from orchestrator.background.options import ServiceOptions, option
from orchestrator.background.state import ServiceState
from orchestrator.background.work import ServiceReport
from orchestrator.views.web.listening import LISTEN

PORT = 8421


@dataclass(frozen=True, slots=True)
class MetricsOptions(ServiceOptions):
    """Where figures are read."""

    port: int = option(PORT, "--port", "Port to listen on; 0: any free port.", least=0, most=65535)
    listen: str = option("127.0.0.1", "--listen", LISTEN, metavar="ADDRESS")
    once: bool = option(False, "--once", "Print the figures and end.", once=True)


@dataclass(frozen=True, slots=True)
class ExporterState(ServiceState):
    """What an exporter says of itself. state: starting, serving. url: where figures are read."""

    url: str = ""

    def text(self) -> str:
        return (
            f"{self.state} {self.url}, {self.where}" if self.url else f"{self.state}, {self.where}"
        )


EXPORTER = Kind(
    "metrics",
    ExporterState,
    "Serve the lab's figures to Prometheus, in OpenMetrics.",
    "orchestrator.views.metrics.work:serve_metrics",
    MetricsOptions,
    """
testbed service start metrics                          http://127.0.0.1:8421/metrics
testbed service run metrics --once                     print them and end
testbed service start metrics --listen lab1.example    for a Prometheus on another machine
testbed service stop metrics
""",
    """
It reads the run store and the journals of this machine, writes nothing, and asks no device or host. Anybody who can reach the
address can read them. Needs the package prometheus_client: pip install 'optical-testbed[metrics]'. docs/how-to/metrics.md
""",
    of="lab",
    kept=True,
)


@dataclass(frozen=True, slots=True)
class MetricsReport(ServiceReport):
    """The figures, where they were to be printed once."""

    verbatim = True
    openmetrics: str = ""

    def text(self) -> str:
        return self.openmetrics.rstrip("\n") or "Ended"
