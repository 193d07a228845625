"""Known host keys: the same as paramiko finds, without comparing each line with all others."""

from __future__ import annotations

from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from paramiko.hostkeys import HostKeyEntry

from orchestrator.hosts.known import keys_of


def public() -> str:
    return (
        Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        .decode()
    )


KEYS = [public() for _ in range(5)]
LINES = [
    "# written by hand",
    "",
    f"[127.0.0.1]:22101 {KEYS[0]} a comment",
    f"gpu01,[127.0.0.1]:22102\t{KEYS[1].replace(' ', chr(9), 1)}",
    f"{paramiko.HostKeys.hash_host('10.0.0.3')} {KEYS[2]}",
    f"10.0.0.4 {KEYS[3]}",
    f"10.0.0.4 {KEYS[4]}",
    "10.0.0.5 ssh-unknown AAAA",
    "10.0.0.6",
]
NAMES = [
    "[127.0.0.1]:22101",
    "[127.0.0.1]:22102",
    "gpu01",
    "10.0.0.3",
    "10.0.0.4",
    "10.0.0.5",
    "10.0.0.6",
    "10.0.0.7",
    "",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_keys_of_a_host_are_those_that_paramiko_finds(tmp_path: Path, name: str) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("\n".join(LINES) + "\n")
    expected = paramiko.HostKeys(str(file)).lookup(name) or {}
    assert {kind: key.asbytes() for kind, key in keys_of(file, name).items()} == {
        k: expected[k].asbytes() for k in expected
    }


def test_a_line_that_is_no_key_hides_no_other_host(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(
        f"10.0.0.1 ssh-ed25519 !!!\n|1|short|x ssh-ed25519 {KEYS[0]}\n|1 x y\n10.0.0.2 {KEYS[1]}\n"
    )
    assert not keys_of(file, "10.0.0.1") and len(keys_of(file, "10.0.0.2")) == 1
    file.write_bytes(b"\xff\xfe\n")
    assert not keys_of(file, "10.0.0.2") and not keys_of(tmp_path / "none", "10.0.0.2")


def test_a_revoked_key_is_no_key_of_a_host_wherever_its_line_stands(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(
        f"10.0.0.1 {KEYS[0]}\n10.0.0.2 {KEYS[1]}\n@revoked\t* {KEYS[0]} stolen\n@revoked\n"
    )
    assert not keys_of(file, "10.0.0.1") and len(keys_of(file, "10.0.0.2")) == 1


def test_a_changed_file_is_read_again_and_only_the_lines_of_the_host_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    known = HostKeyEntry.from_line

    def counting(line: str, lineno: int | None = None) -> HostKeyEntry | None:
        decoded.append(line)
        return known(line, lineno)

    monkeypatch.setattr(HostKeyEntry, "from_line", counting)
    file = tmp_path / "known_hosts"
    file.write_text("".join(f"10.0.0.{n} {KEYS[n % 5]}\n" for n in range(200)))
    assert all(len(keys_of(file, f"10.0.0.{n}")) == 1 for n in range(200)) and len(decoded) == 200
    file.write_text(f"10.0.0.7 {KEYS[0]}\n10.0.0.201 {KEYS[1]}\n")
    assert keys_of(file, "10.0.0.201") and not keys_of(file, "10.0.0.8")
