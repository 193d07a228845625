"""`make drill NAME=seeds`, or `python -m tests.drills.seeds [COUNT] [FIRST]`: stories of `tests/sim`, an hour of a core."""

from __future__ import annotations

import sys

from tests.sim.__main__ import main

COUNT, FIRST = "24000", "1000000"

if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main([words[1] if len(words) > 1 else FIRST, words[0] if words else COUNT, "--shrink"]))
