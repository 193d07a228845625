"""Every measurement, tag and field of the telemetry, declared once with its unit; dashboards and
reports are tested against it.

Rules kept here: integers stay integers; tags are bounded (no ids, iterations or circuit names); a
tag and a field of one measurement never share a name; durations are fields, because a time axis
shows no less than a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.extensions import extension_parts
from orchestrator.measurement import COMMON_TAGS, Field, Measurement

OF_EXTENSIONS: tuple[Measurement, ...] = tuple(
    each for found in extension_parts("measurements", "MEASUREMENTS") for each in found
)
OF_ATTACHMENTS = tuple(each.name for each in OF_EXTENSIONS if "job" in each.tags)
OF_JOBS = ("iteration", "collective", "rank", "requests", "serving", *OF_ATTACHMENTS)
"""What jobs measure. It is in the journal of the run that launched the job, also of when another
run moved its circuits.
"""

USUAL = 20
"""The usual time of an iteration is the median of so many, or of those that there are."""
PAUSE = "the longest time between the ends of two iterations of the job, from the first command until it had continued"
BEFORE = (
    f"a usual iteration before: the median of the last {USUAL} that ended before the first command, each from the end of the one"
    " before it"
)
AFTER = (
    f"a usual iteration afterwards: the median of the first {USUAL} after the job's first one on its next rings (where it did not"
    " ring change: after everything was verified)"
)
"""What a change did to a job; every view and report uses these."""

_RECONFIG_ID = Field(
    "str", "", "groups the points of one reconfiguration: the run's id and a counter"
)
_RECONFIG_PHASES = {
    "command": "first command byte sent to last command acknowledged",
    "ack": "first command byte sent to first removal acknowledged",
    "dark": "removal acknowledged to new state reported, the longest device",
    "power": "new state reported to light seen at every new port, by devices that have meters",
    "link": "new state reported to the last planned port's carrier",
    "route": "last carrier to the last host's commit",
    "first_packet": "commit of the hosts with new light to an answer over every new link",
    "resume": "first packet to the end of the job's next iteration",
    "pause": PAUSE,
    "total": "first command byte sent to everything verified",
}

_ALL = (
    Measurement(
        "reconfig",
        "one wide point per reconfiguration; its time is when the first command was sent",
        (*COMMON_TAGS, "job", "trigger", "policy", "ok"),
        {
            "reconfig_id": _RECONFIG_ID,
            "seq": Field("int", "", "counts reconfigurations of the run from 1"),
            "n_circuits": Field("int", "", "one-way circuits made or broken"),
            "lost_bytes": Field(
                "int",
                "bytes",
                "sent into broken circuits and not received before both ends noticed",
            ),
            "value": Field("int", "", "always 1, so that events can be counted and summed"),
            **{f"{p}_ms": Field("float", "ms", what) for p, what in _RECONFIG_PHASES.items()},
            **{f"{p}_ns": Field("int", "ns", what) for p, what in _RECONFIG_PHASES.items()},
        },
        "events",
        events=True,
    ),
    Measurement(
        "reconfig_device",
        "one point per device and reconfiguration; offsets count from the point's time",
        (*COMMON_TAGS, "device", "kind", "model", "op"),
        {
            "reconfig_id": _RECONFIG_ID,
            "t_send_ns": Field("int", "ns", "first command byte"),
            "t_ack_ns": Field("int", "ns", "last command acknowledged"),
            "t_dark_begin_ns": Field("int", "ns", "removals acknowledged"),
            "t_dark_end_ns": Field("int", "ns", "the device reports the new state"),
            "t_power_ns": Field("int", "ns", "light seen at every new port"),
            "t_link_up_ns": Field("int", "ns", "last carrier behind this device"),
            "t_route_ns": Field("int", "ns", "last commit of a host behind this device"),
            "n_ports": Field("int", "", "ports changed"),
            "writes": Field("int", "", "commands that could change the device"),
            "error": Field("str", "", "the device's own words, empty if none"),
        },
        "events",
        events=True,
    ),
    Measurement(
        "phase",
        "one point per phase of a run, and per device or host inside it; its time is the begin",
        (*COMMON_TAGS, "phase", "kind", "subject"),
        {
            "reconfig_id": _RECONFIG_ID,
            "begin_ns": Field("int", "ns", "since the start of the run"),
            "duration_ns": Field("int", "ns", "how long it took"),
            "duration_ms": Field("float", "ms", "how long it took"),
            "ok": Field("int", "", "1 or 0"),
            "detail": Field("str", "", "a few words, as shown to the operator"),
        },
        "events",
        events=True,
    ),
    Measurement(
        "phase_begin",
        "one point when a phase of a run begins: live views show the phase as the one at work until its `phase` point is there",
        (*COMMON_TAGS, "phase"),
        {"begin_ns": Field("int", "ns", "since the start of the run")},
        "events",
        events=True,
    ),
    Measurement(
        "slot",
        "one point per device and slot of a schedule; its time is when the device reported the slot's light",
        (*COMMON_TAGS, "plan", "device"),
        {
            "slot": Field("int", "", "which slot of the schedule began, from 0 on"),
            "cycle": Field("int", "", "how often all slots had been before"),
            "dark_ms": Field("float", "ms", "first command byte sent to new state reported"),
            "late_ms": Field("float", "ms", "how much later than planned the slot before it ended"),
            "lit_ms": Field("float", "ms", "how long the light of the slot before it was there"),
            "duty": Field("float", "", "share of light of the latest 100 slots, 0 to 1"),
        },
        "slot",
    ),
    Measurement(
        "slot_host",
        "one point per host and slot of a schedule; its time is when the slot's light was there",
        (*COMMON_TAGS, "plan", "host"),
        {
            "slot": Field("int", "", "which slot began, from 0 on"),
            "edge_error_ms": Field(
                "float", "ms", "how much later than the host expected the slot before it ended"
            ),
            "dark_ms": Field(
                "float", "ms", "first carrier lost to the last carrier of the new slot"
            ),
            "lit_ms": Field(
                "float", "ms", "how long the carriers of the slot before it were there"
            ),
        },
        "slot",
    ),
    Measurement(
        "ring_change",
        "one point per change that gave a running job other rings, or paused it; its time is when the change began",
        (*COMMON_TAGS, "job", "mode", "ok"),
        {
            "reconfig_id": _RECONFIG_ID,
            "move": Field("int", "", "the number of the move; the job's records name it, too"),
            "after": Field(
                "int", "", "the last iteration on the earlier rings, or before the pause"
            ),
            "paused_ms": Field(
                "float",
                "ms",
                "time lost beyond the usual, to the end of the first iteration after the change",
            ),
            "dark_ms": Field("float", "ms", "as in reconfig"),
            "commit_ms": Field("float", "ms", "as route_ms in reconfig"),
            "boundary_ms": Field("float", "ms", "paused_ms less dark_ms and commit_ms"),
            "before_ms": Field("float", "ms", BEFORE),
            "after_ms": Field("float", "ms", AFTER),
            "worst_rank_ms": Field(
                "float", "ms", "the longest time that any rank moved no byte although some were due"
            ),
            "prepare_ms": Field(
                "float",
                "ms",
                "until every rank had connected its next rings and ended an iteration",
            ),
        },
        "events",
        events=True,
    ),
    Measurement(
        "ring_change_rank",
        "one point per rank and `ring_change`",
        (*COMMON_TAGS, "job", "rank", "host"),
        {
            "move": Field("int", "", "the number of the move"),
            "state": Field("str", "", "changed, or the state that it did not get beyond"),
            "iteration": Field("int", "", "the latest that it reported"),
            "took_ms": Field("float", "ms", "to connect its next rings"),
            "held_ms": Field("float", "ms", "of its pause"),
            "stall_ms": Field(
                "float", "ms", "the longest time that it moved no byte although some were due"
            ),
        },
        "events",
        events=True,
    ),
    Measurement(
        "stall",
        "one point per darkness of `verify --stall`; its time is the begin of the first step: draining, arming or breaking",
        (*COMMON_TAGS, "mode"),
        {
            "link": Field("str", "", "that was dark"),
            "devices": Field("str", "", "that broke its circuits, separated by spaces"),
            "asked_ms": Field("float", "ms", "darkness asked for; 0: as short as the devices can"),
            "dark_ms": Field("float", "ms", "first carrier lost to last carrier back"),
            "lost_ms": Field("float", "ms", "the longest time in which a host received nothing"),
            "usual_ms": Field("float", "ms", "the same in the traffic before"),
        },
        "events",
        events=True,
    ),
    Measurement(
        "device_phase",
        "what a device is doing, for a state timeline",
        (*COMMON_TAGS, "device", "kind"),
        {
            "phase": Field("str", "", "idle, command, dark, settle, up or fault"),
            "reconfig_id": _RECONFIG_ID,
        },
        "changes",
        events=True,
    ),
    Measurement(
        "verify",
        "one point per rung of the verification ladder",
        (*COMMON_TAGS, "level"),
        {
            "reconfig_id": _RECONFIG_ID,
            "ok": Field("int", "", "1 or 0"),
            "passed": Field("int", "", "checks that passed"),
            "total": Field("int", "", "checks made"),
            "of": Field("int", "", "of how many, where not all pairs of hosts were asked"),
            "seed": Field("str", "", "what drew those that were"),
            "duration_ms": Field("float", "ms", "how long it took"),
            "detail": Field("str", "", "a few words, as shown to the operator"),
        },
        "events",
        events=True,
    ),
    Measurement(
        "circuit",
        "a circuit as a device reports it; `id` is the ingress port's name, for a spectral route with its slot",
        (*COMMON_TAGS, "ocs", "id"),
        {
            "circuit": Field("str", "", "gpu01:p1->gpu02:p1"),
            "source": Field("str", "", "host that sends the light"),
            "target": Field("str", "", "host that receives it"),
            "state": Field("str", "", "up, dark, made, removed or foreign"),
            "mainstat": Field(
                "float",
                "Mb/s",
                "sent into it over the last second, what a node graph prints on the edge",
            ),
            "loss_db": Field(
                "float", "dB", "insertion loss measured, or expected from the inventory"
            ),
        },
        "changes; 1 Hz while ports are sampled",
        events=True,
    ),
    Measurement(
        "port",
        "counters of one port since it came up; `layer` is nic, switch or ocs",
        (*COMMON_TAGS, "host", "port", "layer"),
        {
            "rx_bytes": Field("int", "bytes", "received"),
            "tx_bytes": Field("int", "bytes", "sent"),
            "rx_pkts": Field("int", "packets", "received"),
            "tx_pkts": Field("int", "packets", "sent"),
            "drops": Field("int", "packets", "dropped, both directions"),
            "errors": Field("int", "packets", "errors, both directions"),
            "oper": Field("int", "", "1 with carrier, 0 without"),
        },
        "10 Hz during a change, up to 1 kHz (telemetry.sample_hz)",
    ),
    Measurement(
        "optical",
        "light at one port of a device, whenever circuits are verified or inspected",
        (*COMMON_TAGS, "device", "port"),
        {
            "rx_dbm": Field("float", "dBm", "power received: at an ingress, what enters"),
            "tx_dbm": Field("float", "dBm", "power sent: at an egress, what leaves"),
        },
        "1 to 10 Hz",
    ),
    Measurement(
        "collective",
        "one collective operation of a job, nccl-tests' definitions of bandwidth",
        (*COMMON_TAGS, "job", "op", "algo"),
        {
            "size_bytes": Field("int", "bytes", "buffer size"),
            "iter": Field("int", "", "counts from 0"),
            "iter_ms": Field("float", "ms", "how long it took"),
            "algbw_gbps": Field("float", "Gb/s", "size over time"),
            "busbw_gbps": Field(
                "float",
                "Gb/s",
                "what a rank sends over time: algbw times 2(n-1)/n for an all-reduce on a ring",
            ),
            "wire_bytes": Field(
                "int",
                "bytes",
                "sent by rank 0 for it, without headers of TCP, UDP and IP, where the program counts that",
            ),
            "wide_bytes": Field(
                "int", "bytes", "of wire_bytes, what went to other sites, where these are known"
            ),
            "whole_bytes": Field(
                "int",
                "bytes",
                "what whole sums over a ring would be, in each iteration since the last: 2(n-1)/n of size",
            ),
            "resent_bytes": Field(
                "int", "bytes", "of wire_bytes, what was sent again, where datagrams carry it"
            ),
            "lost_share": Field(
                "float", "1", "of all ranks' numbers, what its sums lack, where datagrams carry it"
            ),
            "loss_bound": Field(
                "float", "1", "the share that a sum may lack at most, where datagrams carry it"
            ),
            "exposed_comm_ms": Field("float", "ms", "communication not hidden by computing"),
        },
        "per iteration",
    ),
    Measurement(
        "iteration",
        "one training step of a job, as its slowest rank saw it",
        (*COMMON_TAGS, "job", "workload"),
        {
            "iter": Field("int", "", "counts from 0"),
            "iter_ms": Field("float", "ms", "whole step"),
            "compute_ms": Field("float", "ms", "forward and backward"),
            "comm_ms": Field("float", "ms", "gradient exchange"),
            "samples_per_s": Field("float", "1/s", "over all ranks"),
            "loss": Field("float", "", "training loss"),
            "ring_groups": Field("int", "", "communicators used in parallel"),
            "save_ms": Field(
                "float",
                "ms",
                "how long training paused before it for a checkpoint: written (sync), or copied (async)",
            ),
        },
        "per iteration",
    ),
    Measurement(
        "requests",
        "one iteration of ranks that ask each other, and a packet switch before, for values",
        (*COMMON_TAGS, "job"),
        {
            "iter": Field("int", "", "counts from 0"),
            "requests": Field("int", "", "of all ranks"),
            "hits": Field("int", "", "of these, answered by a packet switch"),
            "asked_bytes": Field("int", "bytes", "of values that ranks had to send each other"),
            "found_ms": Field("float", "ms", "how long a request of rank 0 took, median"),
            "found_p99_ms": Field("float", "ms", "the same, 99th percentile"),
        },
        "per iteration",
    ),
    Measurement(
        "serving",
        "one iteration of ranks that answer requests to a language model",
        (*COMMON_TAGS, "job"),
        {
            "iter": Field("int", "", "counts from 0"),
            "served": Field("int", "", "requests that were answered"),
            "goodput": Field("float", "", "the share of requests that met both targets"),
            "ttft_ms": Field("float", "ms", "from a request to its first token, median"),
            "ttft_p99_ms": Field("float", "ms", "the same, 99th percentile"),
            "tpot_ms": Field("float", "ms", "for each token after the first, median"),
            "tpot_p99_ms": Field("float", "ms", "the same, 99th percentile"),
            "kv_bytes": Field("int", "bytes", "keys and values that moved between ranks"),
            "kv_ms": Field("float", "ms", "of a request, after its prompt was computed, median"),
        },
        "per iteration",
    ),
    Measurement(
        "rank",
        "one training step of a job, as each of its ranks saw it; its time is when the rank began it",
        (*COMMON_TAGS, "job", "rank"),
        {
            "iter": Field("int", "", "counts from 0"),
            "iter_ms": Field("float", "ms", "whole step"),
            "compute_ms": Field(
                "float", "ms", "all but the wait for its exchange; not known of every program"
            ),
            "exposed_ms": Field("float", "ms", "that wait: communication not hidden by computing"),
            "wait_ms": Field(
                "float",
                "ms",
                "of it, the time in which no byte moved because other ranks were not there yet",
            ),
            "processor_ms": Field(
                "float",
                "ms",
                "in which its threads, all together, were ready to run and had no processor",
            ),
            "rwnd_limited_ms": Field(
                "float",
                "ms",
                "in which its TCP connections, all together, had no receiver's window",
            ),
            "retransmitted": Field("int", "", "TCP segments that it sent again"),
            "refused": Field(
                "int", "", "datagrams that its host did not send as a send buffer was full"
            ),
        },
        "per iteration while the job is followed; of a long job ever fewer",
    ),
    Measurement(
        "gpu",
        "one GPU",
        (*COMMON_TAGS, "host", "gpu"),
        {
            "util": Field("float", "%", "busy"),
            "power_w": Field("float", "W", "drawn"),
            "mem_bytes": Field("int", "bytes", "in use"),
            "nvlink_tx_bytes": Field("int", "bytes", "sent"),
            "nvlink_rx_bytes": Field("int", "bytes", "received"),
            "pcie_bytes_per_s": Field(
                "int", "bytes/s", "both directions, over the 20 ms window of NVML"
            ),
        },
        "1 to 10 Hz",
    ),
    Measurement(
        "clock",
        "offset of a host's wall clock from the operator's, as measured over its channel",
        (*COMMON_TAGS, "host"),
        {
            "offset_ns": Field("int", "ns", "host minus operator"),
            "round_trip_ns": Field(
                "int", "ns", "request to answer; the offset is accurate to within half of it"
            ),
        },
        "when a channel opens; 1 Hz while sampling on demand",
    ),
)

MEASUREMENTS: Mapping[str, Measurement] = {m.name: m for m in (*_ALL, *OF_EXTENSIONS)}
