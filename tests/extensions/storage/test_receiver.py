"""The receiver of a job's checkpoints under attack: what it writes, what it refuses, what it keeps."""

from __future__ import annotations

import errno
import io
import json
import secrets
import shutil
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extensions.storage.rank import __main__ as program
from extensions.storage.rank.__main__ import Receiver
from extensions.storage.rank.storage_observer import ASKED, GIVEN, HEAD, LARGEST
from workloads.transport.peers import Meeting, connect, exactly

ROOM = 1 << 20


class Site:
    """A receiver of two ranks on loopback."""

    def __init__(self, folder: Path, most: int = 64, restore: str = "") -> None:
        self.folder, self.records = folder / "kept", folder / "storage.jsonl"
        self.folder.mkdir(exist_ok=True)
        self.listener = listener = socket.create_server(("127.0.0.1", 0))
        self.met = Meeting("127.0.0.1", listener.getsockname()[1], secrets.token_bytes(32))
        given = (restore, self.folder, self.records)
        self.receiver = Receiver(listener, self.met.key, [0, 1], *given)
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
        return sorted(path.name for path in self.folder.glob("checkpoint-*"))

    def asked(self, rank: int, after: int = 0) -> socket.socket:
        link = self.connect("restore")
        link.sendall(ASKED.pack(rank, after))
        return link

    def restored(self, rank: int, after: int = 0) -> tuple[bool, int, bytes]:
        link = self.asked(rank, after)
        mine, iteration, size = GIVEN.unpack(exactly(link, GIVEN.size))
        found = mine, iteration, exactly(link, size)
        until(lambda: rank not in self.receiver._giving)
        return found

    def end(self) -> None:
        self.receiver.stopped = True
        self.thread.join(10)
        for link in [self.listener, *self.links]:
            link.close()
        self.receiver._selector.close()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(program, "TICK_S", 0.02)
    monkeypatch.setattr(program, "WHOLE", ROOM)
    made = Site(tmp_path)
    yield made
    made.end()


def content(text: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        file.writestr(zipfile.ZipInfo("weights"), text * 100)  # with no time of now
    return made.getvalue()


def keep(link: socket.socket, rank: int, iteration: int, data: bytes, unsent: int = 0) -> None:
    link.sendall(HEAD.pack(rank, unsent, iteration, len(data)) + data)
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


def test_each_that_is_kept_is_recorded_with_what_its_rank_could_not_send(site: Site) -> None:
    data = content("kept")
    keep(site.connect(), 1, 5, data, unsent=3)
    [found] = [json.loads(line) for line in site.records.read_text().splitlines()]
    assert found.pop("t_wall_ns") > 0 and found.pop("send_ms") >= 0
    assert found == {"rank": 1, "iter": 5, "bytes": len(data), "unsent": 3}


def test_who_does_not_know_the_key_or_wants_to_be_something_else_gives_nothing(site: Site) -> None:
    for role, key in (("keep", b"guessed"), ("state", None), ("../x", None)):
        with pytest.raises(OSError):
            site.connect(role, key)
    stranger = socket.create_connection((site.met.address, site.met.port), timeout=20)
    site.links.append(stranger)
    stranger.sendall(HEAD.pack(0, 0, 1, 4) + b"data" + bytes(100))
    until(lambda: is_closed(stranger))
    assert site.files() == []
    keep(site.connect(), 0, 1, content("still there"))


@pytest.mark.parametrize(
    "head",
    [
        HEAD.pack(0, 0, 1, LARGEST + 1),
        HEAD.pack(0, 0, 1, (1 << 64) - 1),
        HEAD.pack(0, 0, 1, ROOM + 1),
        HEAD.pack(0, 0, 1, 0),
        HEAD.pack(2, 0, 1, 10),
        HEAD.pack(0, 0, 0, 10),
        HEAD.pack(0, 0, (1 << 53) + 1, 10),
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
    link.sendall(HEAD.pack(0, 0, 3, 1) + b"x")
    assert is_closed(link)
    assert site.files() == ["checkpoint-0-1.pt", "checkpoint-0-2.pt"]


def test_a_disk_with_little_room_takes_no_more(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    free = program.RESERVE + 100
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    link = site.connect()
    link.sendall(HEAD.pack(0, 0, 1, 101) + b"x")
    assert is_closed(link) and site.files() == []
    free += 1000
    keep(site.connect(), 0, 1, content("room again")[:101])


def test_a_disk_that_is_full_costs_a_checkpoint_and_not_the_receiver(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, full = Path.open, Path("/dev/full")

    def no_log(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("workloads.transport.peers.print", no_log, raising=False)

    def open_full(path: Path, *args: Any, **kwargs: Any) -> Any:
        return opened(full if path.name == "checkpoint-0-1.unfinished" else path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", open_full)
    link, other = site.connect(), site.connect()
    link.sendall(HEAD.pack(0, 0, 1, 1000) + bytes(1000))
    assert is_closed(link)
    keep(other, 1, 1, content("another disk"))


def test_what_breaks_off_is_dropped_and_the_one_before_stays(site: Site) -> None:
    link, data = site.connect(), content("whole")
    keep(link, 0, 1, data)
    link.sendall(HEAD.pack(0, 0, 2, len(data)) + data[:-1])
    until(lambda: site.files() == ["checkpoint-0-1.pt", "checkpoint-0-2.unfinished"])
    assert site.restored(0) == (True, 1, data)
    link.close()
    until(lambda: site.files() == ["checkpoint-0-1.pt"])


def test_a_slow_sender_holds_up_nobody(site: Site) -> None:
    slow, data = site.connect(), content("slow")
    slow.sendall(HEAD.pack(0, 0, 1, len(data)) + data[:1])
    until(lambda: site.files() == ["checkpoint-0-1.unfinished"])
    keep(site.connect(), 1, 1, content("quick"))
    slow.sendall(data[1:])
    assert exactly(slow, 1) == b"."
    assert site.files() == ["checkpoint-0-1.pt", "checkpoint-1-1.pt"]


def test_a_rank_that_connects_again_takes_the_place_of_what_it_sent_before(site: Site) -> None:
    before, data = site.connect(), content("again")
    before.sendall(HEAD.pack(0, 0, 5, len(data)) + data[:9])
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


def again(site: Site, restore: str) -> Site:
    """The next receiver, of the same directory."""
    site.end()
    return Site(site.folder.parent, restore=restore)


def test_a_rank_is_given_its_own_newest_or_anothers_and_never_one_that_is_damaged(
    site: Site,
) -> None:
    links = [site.connect(), site.connect()]
    for iteration in (1, 2):
        for rank, link in enumerate(links):
            keep(link, rank, iteration, content(f"{rank}.{iteration}"))
    assert site.restored(1) == (True, 2, content("1.2"))
    assert site.restored(1, after=1)[1] == 2 and site.restored(1, after=2) == (False, 0, b"")
    own = site.folder / "checkpoint-1-2.pt"
    own.write_bytes(own.read_bytes().replace(b"1.21.2", b"1.21.3", 1))
    assert site.restored(1) == (False, 2, content("0.2"))
    assert site.restored(0) == (True, 2, content("0.2"))
    (site.folder / "checkpoint-0-2.pt").write_bytes(b"no checkpoint")
    assert site.restored(1) == (True, 1, content("1.1"))
    assert is_closed(site.asked(2)), "no rank of this job"


def test_a_restore_that_takes_long_holds_up_neither_another_nor_who_sends(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = site.connect()
    for rank in (0, 1):
        keep(first, rank, 1, content(str(rank)))
    began, goes_on, check = threading.Event(), threading.Event(), program.check_whole

    def slow(path: Path) -> None:
        if path.name == "checkpoint-0-1.pt":
            began.set()
            assert goes_on.wait(20)
        check(path)

    monkeypatch.setattr(program, "check_whole", slow)
    link = site.asked(0)
    assert began.wait(20)
    assert site.restored(1) == (True, 1, content("1"))
    keep(first, 1, 2, content("goes on"))
    goes_on.set()
    assert GIVEN.unpack(exactly(link, GIVEN.size))[1] == 1


def test_a_rank_for_which_there_is_no_thread_is_sent_away_and_may_ask_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    none = SimpleNamespace(Thread=lambda **_: SimpleNamespace(start=refuse))
    with monkeypatch.context() as patch:
        patch.setattr(program, "threading", none)
        assert is_closed(site.asked(0))
    assert site.restored(0) == (False, 0, b"")


def test_what_an_earlier_training_left_stays_until_the_new_one_has_a_checkpoint(
    site: Site,
) -> None:
    link = site.connect()
    for iteration in (10, 20):
        keep(link, 0, iteration, content(f"old {iteration}"))
    anew = again(site, "")
    old = ["checkpoint-0-10.pt", "checkpoint-0-20.pt"]
    assert anew.restored(0) == (False, 0, b"") and anew.files() == old
    anew = again(anew, "newest")
    assert anew.restored(0) == (False, 0, b""), "what began anew had got no further"
    anew = again(anew, "only")
    assert anew.restored(0) == (True, 20, content("old 20")), "somebody wants it back"
    anew = again(anew, "newest")
    assert anew.restored(0) == (False, 0, b""), "the ranks had not begun from it"
    anew = again(anew, "only")
    anew.connect()
    anew = again(anew, "newest")
    assert anew.restored(0) == (True, 20, content("old 20")), "now they had"
    anew = again(anew, "")
    keep(anew.connect(), 1, 5, content("new"))
    assert anew.files() == ["checkpoint-1-5.pt"]
    anew.end()


def test_what_an_earlier_training_left_makes_room_for_the_new_one_but_for_its_newest(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = site.connect()
    for iteration in (10, 20):
        keep(link, 0, iteration, content(f"old {iteration}"))
    anew, older, more = again(site, ""), site.folder / "checkpoint-0-10.pt", 0

    def usage(_: Path) -> SimpleNamespace:
        return SimpleNamespace(free=program.RESERVE + 100 * (not older.exists()) + more)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    link = anew.connect()
    link.sendall(HEAD.pack(1, 0, 5, 101))
    assert is_closed(link) and anew.files() == ["checkpoint-0-20.pt"]
    more = 1
    keep(anew.connect(), 1, 5, bytes(101))
    assert anew.files() == ["checkpoint-1-5.pt"]
    anew.end()


def test_a_receiver_ends_once_each_of_its_ranks_has_said_that_it_ended(site: Site) -> None:
    links = [site.connect(), site.connect()]
    links[0].sendall(HEAD.pack(0, 0, 0, 0))
    keep(links[1], 1, 3, content("the last"))
    links[1].sendall(HEAD.pack(1, 0, 0, 0))
    site.thread.join(20)
    assert not site.thread.is_alive()


def test_a_training_that_went_back_drops_what_was_kept_of_later_iterations(site: Site) -> None:
    link = site.connect()
    for iteration in (10, 20, 30):
        for rank in (0, 1):
            keep(link, rank, iteration, content(f"old {iteration}"))
    back = again(site, "newest")
    keep(back.connect(), 0, 20, content("new 20"))
    assert back.files() == ["checkpoint-0-10.pt", "checkpoint-0-20.pt", "checkpoint-1-10.pt"]
    assert back.restored(1) == (False, 20, content("new 20"))
    keep(back.connect(), 1, 20, content("another's"))
    assert "checkpoint-0-20.pt" in back.files(), "that of a quicker rank stays"
    back.end()


@pytest.mark.parametrize(("gone_s", "looks"), [(61.0, 3), (3700.0, 1)])
def test_a_receiver_waits_an_hour_for_ranks_that_have_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone_s: float, looks: int
) -> None:
    listener, seen = socket.create_server(("127.0.0.1", 0)), list[float]()
    records = tmp_path / "storage.jsonl"
    receiver = Receiver(listener, bytes(32), [0], "", tmp_path, records)
    receiver._came = True

    def wait(within_s: float) -> float:
        seen.append(within_s)
        receiver.stopped = len(seen) == 3
        return time.monotonic() + gone_s

    monkeypatch.setattr(receiver, "wait", wait)
    assert receiver.run() == 0 and len(seen) == looks
    receiver._selector.close()
    listener.close()
