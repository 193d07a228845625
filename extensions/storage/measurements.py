"""What is recorded of the checkpoints that a job's storage has."""

from orchestrator.measurement import COMMON_TAGS, Field, Measurement

MEASUREMENTS = (
    Measurement(
        "storage",
        "one checkpoint of a rank that the job's storage has; its time is when it was on disk there",
        (*COMMON_TAGS, "job"),
        {
            "iter": Field("int", "", "which iteration of the job"),
            "bytes": Field("int", "bytes", "of the checkpoint"),
            "send_ms": Field("float", "ms", "its announcement at the storage to its being on disk"),
            "unsent": Field("int", "", "checkpoints that the rank could not send, since it began"),
            "rank": Field("int", "", "whose it is"),
            "host": Field("str", "", "the storage's"),
            "over": Field("str", "", "the network: management or optical"),
        },
        "per checkpoint",
    ),
)
