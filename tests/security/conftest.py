"""A lab of four families whose passwords each occur nowhere else, and everything written by the
commands that drive it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.end_to_end.conftest import ROOT, Lab

TEXTS = {
    "ocs1": "Wq7-rest-Xk20",
    "ocs2": "Zt4-netconf-Lm31",
    "ocs3": "Hb9-vaulted-Pe42",
    "ocs4": "Ny6-exported-Gs53",
}
VAULT_WORD = "Uc8-opens-the-vault-Rd64"
OPEN_UMASK = 0o000


@dataclass
class Guarded(Lab):
    """The lab; `reported` is all that its commands printed."""

    reported: list[str] = field(default_factory=list)

    def hears(self, *argv: str | Path, **env: str) -> tuple[int, str]:
        """Run a command without --json, under the most generous umask; keep what it says."""
        ended = subprocess.run(
            [Path(sys.executable).with_name("testbed"), *map(str, argv)],
            env=self.env | env,
            capture_output=True,
            text=True,
            timeout=150,
            cwd=self.folder,
            umask=OPEN_UMASK,
            check=False,
        )
        self.reported += [ended.stdout, ended.stderr]
        return ended.returncode, ended.stdout + ended.stderr


def vaulted(word: str, password_file: Path) -> str:
    command = [
        Path(sys.executable).with_name("ansible-vault"),
        "encrypt_string",
        "--vault-password-file",
        password_file,
    ]
    env = {k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE")}
    return subprocess.run(
        command, input=word, capture_output=True, text=True, check=True, timeout=60, env=env
    ).stdout


def write_inventory(lab: Guarded) -> None:
    """Four hosts and one device of each kind of login: HTTP, NETCONF over SSH, TL1 twice; each
    password kept another way.
    """
    generate = [
        sys.executable,
        "-m",
        "emulators.generate",
        "--hosts",
        "4",
        "--ports",
        "4",
        "--free-ports",
    ]
    subprocess.run(
        [*generate, "--out", lab.inventory, "--state", lab.folder / "lab"],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    file = lab.inventory / "devices.yml"
    devices = yaml.safe_load(file.read_text())["devices"]
    kept = lab.folder / "secrets"
    kept.mkdir(mode=0o700)
    for name, word in (("vault-password", VAULT_WORD), ("ocs1", TEXTS["ocs1"])):
        (kept / name).write_text(word + "\n")
        (kept / name).chmod(0o600)
    for name, driver, scheme in (
        ("ocs1", "polatis-restconf", "http"),
        ("ocs2", "polatis-netconf", "netconf"),
    ):
        devices[name] |= {
            "driver": driver,
            "username": "admin",
            "address": devices[name]["address"].replace("tcp", scheme),
        }
    devices["ocs1"]["password_file"] = str(kept / "ocs1")
    devices["ocs2"] |= {
        "password_env": "OCS2_WORD",
        "options": {"known_hosts": str(lab.folder / "lab" / "known_hosts_devices")},
    }
    devices["ocs3"] |= {"password": "VAULTED"}
    devices["ocs4"] |= {"password_env": "OCS4_WORD"}
    for name in ("ocs2", "ocs4"):
        devices[name].pop("password", None)
    text = json.dumps({"lab": "guarded", "devices": devices}, indent=1)
    block = vaulted(TEXTS["ocs3"], kept / "vault-password").replace("!vault |", "").split()
    file.write_text(text.replace('"VAULTED"', '!vault "' + "\\n".join(block) + '"'))
    emulated = lab.inventory / "emulator.yml"
    extra = yaml.safe_load(emulated.read_text())
    for name, word in TEXTS.items():
        extra["devices"][name]["password"] = word
    for name in ("ocs1", "ocs2"):
        extra["devices"][name].pop("bulk_settle_s", None)
    emulated.write_text(json.dumps(extra))
    lab.extra |= {
        "OCS2_WORD": TEXTS["ocs2"],
        "OCS4_WORD": TEXTS["ocs4"],
        "ANSIBLE_VAULT_PASSWORD_FILE": str(kept / "vault-password"),
        "HOME": str(lab.folder / "home"),
        "TMPDIR": str(lab.folder / "tmp"),
        "XDG_RUNTIME_DIR": str(lab.folder / "run"),
    }
    for name in ("home", "tmp", "run"):
        (lab.folder / name).mkdir(mode=0o700)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    # short, because sockets are made below it
    lab = Guarded(tmp_path_factory.mktemp("g"))
    write_inventory(lab)
    code, text = lab.hears("lab", "start")
    assert code == 0, text
    yield lab
    lab.hears("lab", "stop")
