"""Write the skeleton of a driver package: driver, emulator, transcript, page and tests, which fail
until it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from string import Template

from optics import Usage
from optics.plain import did_you_mean

PROTOCOLS: Mapping[str, tuple[str, str]] = {
    "scpi": ("tcp://HOST:5025", "> *IDN?\n< $name,MODEL,0001,1.0\n> :SIZE?\n< 16,16"),
    "tl1": (
        "tcp://HOST:3082",
        "> ACT-USER::user:1::********;\n<\n<    NAME 26-01-01 12:00:00\n< M  1 COMPLD\n< ;\n> RTRV-NE:::2;\n<\n"
        '<    NAME 26-01-01 12:00:00\n< M  2 COMPLD\n<    "$name,MODEL,0001,1.0,16,16"\n< ;',
    ),
    "http": (
        "http://HOST",
        "> GET /info\n< HTTP/1.1 200\n< content-type: application/json\n<\n"
        + '< {"vendor": "$name", "model": "MODEL", "serial": "0001", "firmware": "1.0", "inputs": 16, "outputs": 16}',
    ),
    "cli": ("ssh://HOST", "> show version\n< $name,MODEL,0001,1.0,16,16"),
}
"""Protocol -> the usual address, and the first requests as a transcript."""

TEMPLATES = Path(__file__).parent / "templates"


def scaffold(name: str, protocol: str, out: Path) -> list[Path]:
    """Write the package of driver `name` into the folder `out`, which must be absent or empty;
    return the files.

    Raises: Usage - an invalid name, an unknown protocol, a folder that is not empty.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise Usage(
            f"{name!r} is not a driver name: wanted lower-case letters, digits and single dashes, such as acme-scpi"
        )
    if protocol not in PROTOCOLS:
        raise Usage(
            f"--protocol {protocol}: not one of {', '.join(PROTOCOLS)}{did_you_mean(protocol, PROTOCOLS)}"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Usage(
            f"{out}: already exists and is not empty", hint="name another folder: --out DIR"
        )
    package = name.replace("-", "_") + "_testbed"
    address, transcript = PROTOCOLS[protocol]
    texts = {
        "name": name,
        "cls": "".join(part.capitalize() for part in name.split("-")),
        "package": package,
        "address": address,
        "transcript": Template(transcript).substitute(name=name),
    }
    files = {
        "pyproject.toml": "common/pyproject.toml",
        "README.md": "common/README.md",
        f"docs/{name}.md": "common/docs.md",
        f"transcripts/{name}.txt": "common/transcript.txt",
        "tests/test_conformance.py": "common/test_conformance.py",
        f"{package}/driver.py": f"{protocol}/driver.py",
        f"{package}/emulated.py": f"{protocol}/emulated.py",
    }
    written = []
    for target, source in files.items():
        path = out / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            Template((TEMPLATES / f"{source}.tmpl").read_text(encoding="utf-8")).substitute(texts),
            encoding="utf-8",
        )
        written.append(path)
    (out / package / "__init__.py").write_text(
        f'"""Driver and emulator of {name}."""\n', encoding="utf-8"
    )
    return [*written, out / package / "__init__.py"]
