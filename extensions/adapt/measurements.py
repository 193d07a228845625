"""What is recorded of each look at a job's traffic."""

from orchestrator.measurement import COMMON_TAGS, Field, Measurement

WHY = {
    "gain": "too little gain",
    "dark": "the dark would not fit into the computing",
    "late": "no iteration left room",
    "unknown": "not every rank has said what it sends",
}
"""Why circuits were left, in words."""

MEASUREMENTS = (
    Measurement(
        "adapt",
        "one point per look at a job's traffic, whether its circuits were changed (turned), left (skipped) or taken back (failed)",
        (*COMMON_TAGS, "plan", "what"),
        {
            "iteration": Field(
                "int", "", "of the job: the one looked at, or the one in which circuits changed"
            ),
            "why": Field(
                "str", "", "skipped: gain, dark, late or unknown; failed: the kind of error"
            ),
            "skew": Field(
                "float", "", "bytes of the largest pair of hosts over the mean of all pairs"
            ),
            "gain": Field(
                "float",
                "",
                "predicted time over the circuits of now, over that over the proposed ones",
            ),
            "now_ms": Field(
                "float", "ms", "predicted time of one exchange over the circuits of now"
            ),
            "then_ms": Field(
                "float", "ms", "predicted time of one exchange over the proposed circuits"
            ),
            "planned_ms": Field("float", "ms", "the computing of target and routes"),
            "change_ms": Field("float", "ms", "the first host's drain to the last commit"),
            "dark_ms": Field("float", "ms", "first command sent to the last carrier"),
            "exposed_ms": Field("float", "ms", "of the change, what fell into the job's exchanges"),
            "moved": Field("int", "", "settings made and removed"),
        },
        "events",
        events=True,
    ),
)
