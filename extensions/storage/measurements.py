"""What is recorded of the checkpoints that ranks send to their job's storage."""

from orchestrator.measurement import COMMON_TAGS, Field, Measurement

MEASUREMENTS = (
    Measurement(
        "storage",
        "one checkpoint of a rank on its way to the job's storage; its time is when that ended",
        (*COMMON_TAGS, "job"),
        {
            "iter": Field("int", "", "which iteration of the job"),
            "bytes": Field("int", "bytes", "of the checkpoint"),
            "send_ms": Field("float", "ms", "the first byte to the word that it is kept"),
            "kept": Field("int", "", "1: the storage has it; 0: it could not be sent"),
            "limit_mbps": Field("float", "Mb/s", "this rank's share of the rate"),
            "rank": Field("int", "", "whose it is"),
            "host": Field("str", "", "the storage's"),
        },
        "per checkpoint",
    ),
)
