"""A lab imported from a NetBox that documents it: compared with its light, and its circuits written
back.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from orchestrator.session import load_lab
from tests.end_to_end.conftest import Lab
from tests.netbox.mirrored import mirrored
from tests.netbox.served import TOKEN, serving

WITHOUT_LIBRARY = find_spec("pynetbox") is None

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(WITHOUT_LIBRARY, reason="pynetbox is not installed"),
]


def test_cabling_is_compared_with_the_light_and_circuits_are_written_back(
    lab: Lab, tmp_path: Path
) -> None:
    documented = load_lab(lab.inventory)
    missed, dark, *_ = documented.fibres.values()
    out = tmp_path / "mylab"
    with serving(mirrored(documented, "circuit")) as netbox:

        def imported(*more: str) -> dict[str, Any]:
            argv = ("lab", "import", "netbox", "--out", out, "--url", netbox.url, *more)
            return lab.quick(*argv, TESTBED_NETBOX_TOKEN=TOKEN).must()

        assert imported()["fibres"] == len(documented.fibres)
        (out / "devices.yml").write_text((lab.inventory / "devices.yml").read_text())
        assert imported("--check")["differences"] == []
        # inputs that no host of the lab is cabled to have light from elsewhere
        light = imported("--check")["light"]
        assert not [text for text in light if "no light" in text]
        netbox.lists["cables"] = netbox.lists["cables"][1:]
        missing = imported("--check")
        assert [d["name"] for d in missing["differences"] if d["how"] == "removed"] == [missed.name]
        assert [
            text for text in missing["light"] if text.startswith(f"light enters {missed.enters} (")
        ]
        lab.ask("fibre", name=dark.name, cut=True)
        try:
            found = imported("--check")["light"]
            assert [text for text in found if text.startswith(f"no light enters {dark.enters}: ")]
        finally:
            lab.ask("fibre", name=dark.name, cut=False)

        lab.up(lab.plan("pair", [("gpu01:p2", "gpu02:p2")])).must()
        assert imported("--write-circuits", "circuit")["cables_written"] == 2
        named = {row["label"]: row["custom_fields"]["circuit"] for row in netbox.lists["cables"]}
        both = "gpu01:p2->gpu02:p2, gpu02:p2->gpu01:p2"
        fibres = {str(port): fibre.name for port, fibre in documented.fibres.items()}
        assert {name for name, text in named.items() if text == both} == {
            fibres["gpu01:p2"],
            fibres["gpu02:p2"],
        }
        assert imported("--write-circuits", "circuit")["cables_written"] == 0
        lab.testbed("down", "--yes").must()
        assert imported("--write-circuits", "circuit")["cables_written"] == 2
        assert {row["custom_fields"]["circuit"] for row in netbox.lists["cables"]} == {None}
