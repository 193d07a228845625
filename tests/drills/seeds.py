"""`make drill NAME=seeds`, or `python -m tests.drills.seeds [COUNT] [FIRST]`: stories of
`tests/sim`, an hour of a core.
"""

from __future__ import annotations

import sys

from tests.sim.__main__ import main

COUNT, FIRST = "24000", "1000000"

if __name__ == "__main__":
    message = sys.argv[1:]
    sys.exit(
        main(
            [
                message[1] if len(message) > 1 else FIRST,
                message[0] if message else COUNT,
                "--shrink",
            ]
        )
    )
