"""The receiver of a job's checkpoints under attack: what it writes, what it refuses, what it keeps."""

from __future__ import annotations

import io
import secrets
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from extensions.storage.rank import __main__ as program
from extensions.storage.rank.__main__ import Receiver
from extensions.storage.rank.storage_observer import HEAD, LARGEST, RANK
from workloads.transport.peers import Meeting, connect, exactly

ROOM = 1 << 20


class Site:
    """A receiver of two ranks on loopback."""

    def __init__(self, folder: Path, most: int = 64) -> None:
        self.folder = folder / "kept"
        self.folder.mkdir()
        self.listener = listener = socket.create_server(("127.0.0.1", 0))
        self.met = Meeting("127.0.0.1", listener.getsockname()[1], secrets.token_bytes(32))
        self.receiver = Receiver(listener, self.met.key, self.folder, 2, ROOM)
        self.receiver._most = most
        self.thread = threading.Thread(target=self.receiver.run, daemon=True)
        self.thread.start()
        self.links: list[socket.socket] = []

    def connect(self, role: str = "keep", key: bytes | None = None) -> socket.socket:
        met = self.met if key is None else Meeting(self.met.address, self.met.port, key)
        link = connect(met, role, 10.0)
        link.settimeout(20.0)
        self.links.append(link)
        return link

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def restored(self, rank: int) -> tuple[int, int, bytes]:
        link = self.connect("restore")
        link.sendall(RANK.pack(rank))
        source, iteration, size = HEAD.unpack(exactly(link, HEAD.size))
        return source, iteration, exactly(link, size)

    def end(self) -> None:
        self.receiver.stopped = True
        self.thread.join(10)
        for link in [self.listener, *self.links]:
            link.close()
        self.receiver._selector.close()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(program, "TICK_S", 0.02)
    made = Site(tmp_path)
    yield made
    made.end()


def content(text: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("weights", text * 100)
    return made.getvalue()


def keep(link: socket.socket, rank: int, iteration: int, data: bytes) -> None:
    link.sendall(HEAD.pack(rank, iteration, len(data)) + data)
    assert exactly(link, 1) == b"."


def until(true: Callable[[], Any]) -> None:
    give_up = time.monotonic() + 20
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def is_closed(link: socket.socket) -> bool:
    with suppress(ConnectionError):
        return link.recv(1) == b""
    return True


def test_the_newest_four_of_each_rank_are_kept_whole(site: Site) -> None:
    links = [site.connect(), site.connect()]
    for iteration in range(1, 7):
        for rank, link in enumerate(links):
            keep(link, rank, iteration, content(f"{rank}.{iteration}"))
    assert site.files() == [
        f"checkpoint-{rank}-{iteration}.pt" for rank in (0, 1) for iteration in range(3, 7)
    ]
    assert (site.folder / "checkpoint-1-6.pt").read_bytes() == content("1.6")
    keep(links[0], 0, 2, content("behind, as it was restored"))
    assert "checkpoint-0-2.pt" in site.files()


def test_who_does_not_know_the_key_or_wants_to_be_something_else_gives_nothing(site: Site) -> None:
    for role, key in (("keep", b"guessed"), ("state", None), ("../x", None)):
        with pytest.raises(OSError):
            site.connect(role, key)
    stranger = socket.create_connection((site.met.address, site.met.port), timeout=20)
    site.links.append(stranger)
    stranger.sendall(HEAD.pack(0, 1, 4) + b"data" + bytes(100))
    until(lambda: is_closed(stranger))
    assert site.files() == []
    keep(site.connect(), 0, 1, content("still there"))


@pytest.mark.parametrize(
    "head",
    [
        HEAD.pack(0, 1, LARGEST + 1),
        HEAD.pack(0, 1, (1 << 64) - 1),
        HEAD.pack(0, 1, ROOM + 1),
        HEAD.pack(0, 1, 0),
        HEAD.pack(2, 1, 10),
        HEAD.pack(0, 0, 10),
        HEAD.pack(0, (1 << 53) + 1, 10),
        b"../../../../etc/cron.d/evil"[: HEAD.size],
    ],
    ids=["large", "larger", "no room", "empty", "no such rank", "zeroth", "exact", "a path"],
)
def test_what_is_announced_wrongly_ends_the_connection_before_a_byte_is_taken(
    site: Site, head: bytes
) -> None:
    link = site.connect()
    with suppress(ConnectionError):
        link.sendall(head + b"x" * 10)
    assert is_closed(link) and site.files() == []
    keep(site.connect(), 0, 1, content("the next one"))


def test_all_checkpoints_of_a_job_together_have_a_bound(site: Site) -> None:
    link, piece = site.connect(), bytes(ROOM // 2)
    keep(link, 0, 1, piece)
    keep(link, 0, 2, piece)
    link.sendall(HEAD.pack(0, 3, 1) + b"x")
    assert is_closed(link)
    assert site.files() == ["checkpoint-0-1.pt", "checkpoint-0-2.pt"]


def test_what_breaks_off_is_dropped_and_the_one_before_stays(site: Site) -> None:
    link, data = site.connect(), content("whole")
    keep(link, 0, 1, data)
    link.sendall(HEAD.pack(0, 2, len(data)) + data[:-1])
    until(lambda: site.files() == ["checkpoint-0-1.pt", "checkpoint-0-2.unfinished"])
    assert site.restored(0)[:2] == (0, 1)
    link.close()
    until(lambda: site.files() == ["checkpoint-0-1.pt"])


def test_a_slow_sender_holds_up_nobody_and_is_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = site.connect()
    slow.sendall(HEAD.pack(0, 1, 100) + b"x")
    until(lambda: site.files() == ["checkpoint-0-1.unfinished"])
    keep(site.connect(), 1, 1, content("quick"))
    [sender] = [each for each in site.receiver._peers if each.file]
    assert sender.until_s > time.monotonic() + program.SLOW_S / 2
    monkeypatch.setattr(program, "SLOW_S", 0.0)
    slow.sendall(b"x")
    assert is_closed(slow)
    until(lambda: site.files() == ["checkpoint-1-1.pt"])


def test_a_rank_that_connects_again_takes_the_place_of_what_it_sent_before(site: Site) -> None:
    before, data = site.connect(), content("again")
    before.sendall(HEAD.pack(0, 5, len(data)) + data[:9])
    until(site.files)
    keep(site.connect(), 0, 5, data)
    assert is_closed(before)
    assert (site.folder / "checkpoint-0-5.pt").read_bytes() == data


def test_strangers_take_no_place_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "TICK_S", 0.02)
    site = Site(tmp_path, most=3)
    for _ in range(5):
        address = (site.met.address, site.met.port)
        site.links.append(socket.create_connection(address, timeout=20))
    keep(site.connect(), 0, 1, content("in"))
    assert len(site.receiver._peers) <= 3
    site.end()


def test_a_rank_is_given_its_own_newest_or_anothers_and_never_one_that_is_damaged(
    site: Site,
) -> None:
    assert site.restored(0) == (0, 0, b"")
    links = [site.connect(), site.connect()]
    for iteration in (1, 2):
        for rank, link in enumerate(links):
            keep(link, rank, iteration, content(f"{rank}.{iteration}"))
    assert site.restored(1) == (1, 2, content("1.2"))
    own = site.folder / "checkpoint-1-2.pt"
    own.write_bytes(own.read_bytes().replace(b"1.21.2", b"1.21.3", 1))
    assert site.restored(1) == (0, 2, content("0.2")) == site.restored(0)
    (site.folder / "checkpoint-0-2.pt").write_bytes(b"no checkpoint")
    assert site.restored(1) == (1, 1, content("1.1"))
