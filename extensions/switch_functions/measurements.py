"""What is recorded of what packet switches counted for a job."""

from orchestrator.measurement import COMMON_TAGS, Field, Measurement

MEASUREMENTS = (
    Measurement(
        "function",
        "what a packet switch has counted for a job since its function was allocated; its time is when it was asked",
        (*COMMON_TAGS, "job", "segment", "function"),
        {
            "size": Field("int", "", "slots or entries that the job has"),
            "total": Field("int", "", "slots or entries of the switch, all jobs together"),
            "each_bytes": Field("int", "bytes", "size of one slot or entry"),
            "lease_left_s": Field("float", "s", "until the allocation ends, unless it is renewed"),
            "packets_in": Field("int", "packets", "of the job's ranks"),
            "packets_out": Field("int", "packets", "to them"),
            "bytes_in": Field("int", "bytes", "in these packets, with the function's header"),
            "bytes_out": Field("int", "bytes", "in these packets, with the function's header"),
            "sums": Field("int", "", "aggregate: chunks whose sum was complete"),
            "duplicates": Field(
                "int", "packets", "aggregate: parts sent again that were in already"
            ),
            "gets": Field("int", "", "cache: questions"),
            "hits": Field("int", "", "cache: of these, answered by the switch"),
            "stored": Field("int", "", "cache: entries in use"),
            "evicted": Field("int", "", "cache: entries that made room for others"),
        },
        "when the job is asked: 1 Hz while watched",
    ),
)
