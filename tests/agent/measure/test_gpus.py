"""GPU counters: a host without GPUs stays silent; with a library that speaks as nvml.h says, its
readings arrive.

No GPU is needed, and none of this was tried on one: the library below is compiled here, from the
signatures in NVIDIA's nvml.h.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.change.port_counters import record_gpus
from orchestrator.hosts import HostEvent
from orchestrator.telemetry import MEASUREMENTS, Journal, read_points
from tests.agent.space import AGENT, ENV, Peer, Space, facts

LIBRARY = """
#include <stdint.h>
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned long long total, free, used; } memory;
typedef union { double d; unsigned long long ull; } number;
typedef struct { uint32_t field, scope; int64_t at, latency; int kind, result; number value; } field;
static int handles[2];
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = GPUS; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = &handles[i]; return 0; }
int nvmlDeviceGetUtilizationRates(void *h, utilization *u) { u->gpu = 93; u->memory = 40; return 0; }
int nvmlDeviceGetPowerUsage(void *h, unsigned *mw) { *mw = 412500; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, memory *m) { m->total = 80ULL << 30; m->used = 60ULL << 30; m->free = 20ULL << 30; return 0; }
int nvmlDeviceGetPcieThroughput(void *h, int way, unsigned *kb) { *kb = way ? 2000 : 1000; return 0; }
int nvmlDeviceGetFieldValues(void *h, int n, field *f) {
  for (int i = 0; i < n; i++) {
    f[i].result = h == &handles[1] ? 3 : 0; /* the second one has no NVLink: not supported */
    f[i].value.ull = f[i].field == 138 && f[i].scope == 0xffffffff ? 7 : 9;
  }
  return 0;
}
"""


def compiled(folder: Path, gpus: int) -> Path:
    """A folder with such a library."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc is not installed: what NVML answers is not tried")
    (folder / "nvml.c").write_text(LIBRARY)
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            f"-DGPUS={gpus}",
            "-o",
            folder / "libnvidia-ml.so.1",
            folder / "nvml.c",
        ],
        check=True,
    )
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that finds two GPUs."""
    return compiled(tmp_path_factory.mktemp("nvml"), 2)


def look(env: dict[str, str]) -> str:
    """The first line that the process prints; empty where it ends without one."""
    command = [sys.executable, "-S", "-E", str(AGENT), "gpus", "0.1"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    return line


def test_every_reading_of_every_gpu_reaches_the_journal_and_what_one_does_not_give_is_left_out(
    library: Path, tmp_path: Path
) -> None:
    reply = json.loads(look(ENV | {"LD_LIBRARY_PATH": str(library)}))
    with Journal(tmp_path, "r", "lab") as journal:
        record_gpus(journal, HostEvent("gpu01", "gpus", journal.now_ns(), reply))
    first, second = read_points(tmp_path)
    assert set(first.fields) == set(MEASUREMENTS["gpu"].fields)
    assert (first.fields["util"], first.fields["power_w"], first.fields["mem_bytes"]) == (
        93.0,
        412.5,
        60 << 30,
    )
    assert (first.fields["nvlink_tx_bytes"], first.fields["nvlink_rx_bytes"]) == (7 << 10, 9 << 10)
    assert first.fields["pcie_bytes_per_s"] == 3_000_000
    assert (
        set(first.fields) - set(second.fields) == {"nvlink_tx_bytes", "nvlink_rx_bytes"}
        and second.tags["gpu"] == "1"
    )


def test_a_host_without_gpus_stays_silent(tmp_path: Path) -> None:
    assert look(ENV | {"LD_LIBRARY_PATH": str(compiled(tmp_path, 0))}) == ""
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    assert look(ENV | {"LD_LIBRARY_PATH": str(tmp_path)}) == ""


@pytest.mark.lab
@pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root")
def test_readings_come_over_the_channel_until_stopped(
    library: Path, spaces: Callable[[str], Space]
) -> None:
    here = spaces("gpu07")
    here.fibre(1, spaces("far"), 1)
    here.agent("provision", facts("gpu07", 1, 1))
    argv = ["env", f"LD_LIBRARY_PATH={library}", sys.executable, "-S", "-E", str(AGENT), "start"]
    assert json.loads(here.run(*argv).stdout)["started"]
    peer: Peer = here.attach()
    assert "at least 0.1" in peer.ask("gpus", interval_s=0.01)["error"]
    peer.ask("gpus", interval_s=0.1)
    assert [gpu["gpu"] for gpu in peer.event("gpus")["gpus"]] == [0, 1]
    peer.event("gpus")
    assert peer.ask("gpus", interval_s=None) == {"watching": False, "id": 3, "ok": True}
    peer.events.clear()
    assert peer.line(0.3) is None
    assert not here.run("pgrep", "-f", "agent/__main__.py gpus").stdout, "the process is gone, too"
