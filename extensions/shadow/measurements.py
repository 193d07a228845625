"""What is recorded of what the shadow of a job judged."""

from orchestrator.measurement import COMMON_TAGS, Field, Measurement

MEASUREMENTS = (
    Measurement(
        "shadow",
        "one iteration as the shadow of a job judged it; its time is when it did",
        (*COMMON_TAGS, "job"),
        {
            "iter": Field("int", "", "which iteration of the job"),
            "equal": Field(
                "int", "", "1: followed, and the hash of its weights is the job's; 0: flagged"
            ),
            "fetched": Field("int", "", "1: its state was sent by the job, instead of followed"),
            "missing": Field("int", "bytes", "of its sums that were not seen"),
            "lost": Field("int", "", "packets that the taps had no room for, since the job began"),
            "lag_ms": Field(
                "float", "ms", "the job's word that the iteration is over to the verdict"
            ),
            "checkpoint": Field("int", "", "the iteration of the newest state that is equal"),
            "host": Field("str", "", "the shadow's"),
            "taps": Field(
                "str", "", "hosts whose received packets are copied, separated by spaces"
            ),
        },
        "per iteration",
    ),
)
