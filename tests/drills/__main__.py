"""`make drill [NAME=...]`: the drills whole, one after the other; each ends with its table and one
line that sums it up.
"""

from __future__ import annotations

import os
import subprocess
import sys

NAMES = ("host_faults", "crash_points", "living", "seeds")


def main() -> int:
    """Run what was asked: all, or NAME with what it takes (see each module)."""
    wanted = sys.argv[1:] or ["all"]
    if wanted[0] not in ("all", *NAMES):
        print(f"no drill {wanted[0]}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("the drills build the emulated lab, which needs root: sudo", file=sys.stderr)
        return 2
    runs = [[name] for name in NAMES] if wanted[0] == "all" else [wanted]
    ended: dict[str, int] = {}
    for name, *argv in runs:
        print(f"== {name}", flush=True)
        ended[name] = subprocess.run(
            [sys.executable, "-m", f"tests.drills.{name}", *argv], check=False
        ).returncode
    for name, code in ended.items():
        print(f"{name:<14} {'ok' if code == 0 else 'NOT MET'}")
    return int(any(ended.values()))


if __name__ == "__main__":
    sys.exit(main())
