"""Write the dashboards: `python -m dashboards` (and `--check`: only report whether the committed
files are up to date).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import fabric, live, reconfiguration, schedules, traffic, training
from orchestrator.extensions import extension_parts

FOLDER = Path(__file__).with_name("json")
PAGES = (live, reconfiguration, fabric, training, schedules, traffic)


def finished(model: dict[str, Any]) -> dict[str, Any]:
    """Give each panel its id, by the order alone; leave out what the library always writes and
    would hide links in a menu.
    """
    for each in (*model["links"], *model["annotations"]["list"]):
        del each["placement"]
    count = 0
    for panel in model["panels"]:
        for each in (panel, *panel.get("panels", ())):
            count += 1
            each["id"] = count
    return model


def text_of(builder: board.Dashboard) -> str:
    """A dashboard as its file holds it."""
    model = json.loads(json.dumps(builder.build(), cls=JSONEncoder))
    return json.dumps(finished(model), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def files() -> dict[str, str]:
    """Every dashboard's file name and text."""
    texts = [
        text_of(build())
        for build in (*(page.build for page in PAGES), *extension_parts("board", "build"))
    ]
    return {f"{json.loads(text)['uid']}.json": text for text in texts}


def main() -> int:
    wanted = files()
    held = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    stale = sorted(
        name for name in wanted.keys() | held.keys() if wanted.get(name) != held.get(name)
    )
    if "--check" in sys.argv[1:]:
        print(
            "\n".join(f"not what `python -m dashboards` writes: {name}" for name in stale)
            or "all as written"
        )
        return 1 if stale else 0
    for name in stale:
        path = FOLDER / name
        if name in wanted:
            path.write_text(wanted[name], encoding="utf-8")
        else:
            path.unlink()
        print(f"{'wrote' if name in wanted else 'removed'} {path.relative_to(FOLDER.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
