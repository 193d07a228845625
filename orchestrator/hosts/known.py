"""Host keys that are known, from files of OpenSSH's format: each read once, whatever the number of
hosts.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import paramiko

Lines: TypeAlias = tuple[Mapping[str, tuple[str, ...]], tuple[tuple[str, str], ...], frozenset[str]]
"""Lines by the name they begin with; lines with a hashed name, after that; keys of lines that
revoke one, in base64.
"""
HASHED, REVOKED = "|1|", "@revoked"  # sshd(8), SSH_KNOWN_HOSTS FILE FORMAT


def keys_of(file: Path, name: str) -> dict[str, paramiko.PKey]:
    """The keys of the host `name` (`[address]:port` but for port 22) by their type; empty where
    there is none, or no file.

    As paramiko's HostKeys, which compares each line with all before it: of 192 hosts 7 million
    comparisons. A line that is no key of a known type counts for nothing, and a key that is revoked
    for any host for none.
    """
    import paramiko
    from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

    try:
        at = file.stat()
        named, hashed, revoked = _lines(file, at.st_mtime_ns, at.st_size)
    except (OSError, UnicodeDecodeError):
        return {}
    found: dict[str, paramiko.PKey] = {}
    for line in (*named.get(name, ()), *(line for salted, line in hashed if _is(name, salted))):
        if revoked.intersection(line.split()):
            continue
        try:
            entry = HostKeyEntry.from_line(line)
        except (paramiko.SSHException, InvalidHostKey, ValueError):
            continue
        if entry is not None and entry.key is not None:
            found.setdefault(entry.key.get_name(), entry.key)
    return found


def _is(name: str, salted: str) -> bool:
    """Whether `salted`, as `|1|salt|hash`, is `name`."""
    import paramiko

    try:
        return hmac.compare_digest(
            paramiko.HostKeys.hash_host(name, salted).encode(), salted.encode()
        )
    except (AssertionError, IndexError, ValueError):  # no salt of 20 bytes in base64
        return False


@lru_cache(maxsize=4)
def _lines(file: Path, changed_ns: int, size: int) -> Lines:
    """Read the file; `changed_ns` and `size` are of the version that is meant. Raises: OSError,
    UnicodeDecodeError.
    """
    named: dict[str, list[str]] = {}
    hashed: list[tuple[str, str]] = []
    revoked: set[str] = set()
    for line in map(str.strip, file.read_text().splitlines()):
        if not line or line.startswith("#"):
            continue
        if line.split()[0] == REVOKED:
            revoked.update(line.split()[3:4])
            continue
        for name in re.split(" |\t", line)[0].split(","):
            if name.startswith(HASHED):
                hashed.append((name, line))
            else:
                named.setdefault(name, []).append(line)
    return {name: tuple(lines) for name, lines in named.items()}, tuple(hashed), frozenset(revoked)
