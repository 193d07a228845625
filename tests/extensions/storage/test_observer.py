"""A rank's side of its job's storage: when it tries again, what it waits for, what it begins from."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from extensions.storage.rank import __main__ as program
from extensions.storage.rank import storage_observer
from extensions.storage.rank.storage_observer import UNKNOWN, StorageObserver
from workloads.programs.observers import Training
from workloads.transport.peers import Meeting


def training(*others: int, take: Callable[[bytes, bool], int] = lambda *_: 0) -> Training:
    """That of rank 0; `others` say what they were given."""
    place = SimpleNamespace(rank=0, dilation=1.0, timeout_s=60.0)

    def gather(_: str, value: int, within_s: float) -> list[int]:
        assert within_s == storage_observer.RESTORE_S, "others may be read for as long"
        return [value, *others]

    accord = SimpleNamespace(gather=gather)
    return Training(cast(Any, SimpleNamespace(place=place, accord=accord)), [], [], 0.1, {}, take)


def observer(restore: str = "", port: int = 1) -> StorageObserver:
    met = Meeting("127.0.0.1", port, bytes(32), restore)
    return StorageObserver(met, 1000.0, False, 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that the observer goes by."""
    made = SimpleNamespace(now=100.0, monotonic=lambda: made.now)
    monkeypatch.setattr(storage_observer, "time", made)
    return made


def test_a_rank_whose_storage_returns_sends_again_however_often_it_writes(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_observer, "CONNECT_S", 0.0)
    monkeypatch.setattr(program, "TICK_S", 0.02)
    own, kept = tmp_path / "own.pt", tmp_path / "kept"
    own.write_bytes(b"checkpoint")
    kept.mkdir()
    listener = socket.create_server(("127.0.0.1", 0))
    met = Meeting("127.0.0.1", listener.getsockname()[1], secrets.token_bytes(32))
    listener.close()  # nobody listens yet
    rank = StorageObserver(met, 1000.0, False, 0)
    rank.begin(training(), 0)
    for iteration in (1, 2, 3):
        clock.now += 4.0
        rank.written(iteration, own)
    listener = socket.create_server((met.address, met.port))
    records = tmp_path / "storage.jsonl"
    receiver = program.Receiver(listener, met.key, [0, 1], "", kept, records)
    thread = threading.Thread(target=receiver.run, daemon=True)
    thread.start()
    clock.now += 4.0
    rank.written(4, own)
    rank.end()
    receiver.stopped = True
    thread.join(20)
    listener.close()
    assert [path.name for path in kept.glob("*.pt")] == ["checkpoint-0-4.pt"]
    assert '"unsent": 3' in records.read_text()


class Stuck:
    """A connection whose other end takes nothing."""

    def __init__(self) -> None:
        self.sent, self.closed, self.timeout = 0, False, 0.0

    def settimeout(self, seconds: float) -> None:
        self.timeout = seconds

    def sendall(self, data: bytes) -> None:
        self.sent += 1
        if self.sent > 1:
            raise TimeoutError("timed out")

    def close(self) -> None:
        self.closed = True


def test_a_storage_that_hangs_is_waited_for_once_and_for_less_than_a_stop_waits(
    tmp_path: Path,
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    link, path = Stuck(), tmp_path / "own.pt"
    path.write_bytes(bytes(1 << 20))
    monkeypatch.setattr(storage_observer, "connect", lambda *_: link)
    rank = observer()
    rank.begin(training(), 0)
    rank.written(7, path)
    assert (link.sent, link.closed) == (2, True) and link.timeout < 15
    said = "# storage: the checkpoint of iteration 7 is not at the job's storage at 127.0.0.1:1: "
    assert said in capsys.readouterr().err
    rank.written(8, path)
    assert link.sent == 2 and capsys.readouterr().err == "", "said once in a while"


def test_a_checkpoint_that_no_storage_takes_is_said_with_its_size_and_not_sent(
    tmp_path: Path,
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    link, path = Stuck(), tmp_path / "own.pt"
    path.write_bytes(bytes(101))
    monkeypatch.setattr(storage_observer, "connect", lambda *_: link)
    monkeypatch.setattr(storage_observer, "LARGEST", 100)
    rank = observer()
    rank.begin(training(), 0)
    rank.written(7, path)
    text = "it has 101 bytes, and 100 are the most that a storage takes"
    assert link.sent == 0 and text in capsys.readouterr().err


def test_a_checkpoint_that_takes_longer_than_ranks_wait_for_each_other_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    link, path = Stuck(), tmp_path / "own.pt"
    path.write_bytes(bytes(1 << 20))
    monkeypatch.setattr(storage_observer, "connect", lambda *_: link)
    rank = StorageObserver(Meeting("127.0.0.1", 1, bytes(32)), 0.2, False, 0)
    rank.begin(training(), 0)
    rank.written(7, path)
    text = "it takes 42 s at this rank's rate, more than the 30 s for which ranks may wait for each other: write a higher mbps"
    assert link.sent == 0 and text in capsys.readouterr().err


def test_a_storage_that_drips_is_given_up_before_others_give_up_this_rank(
    tmp_path: Path,
    clock: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Dripping(Stuck):
        def sendall(self, data: bytes) -> None:
            self.sent += 1
            clock.now += min(9.0, self.timeout)

    link, path = Dripping(), tmp_path / "own.pt"
    path.write_bytes(bytes(1 << 20))
    monkeypatch.setattr(storage_observer, "connect", lambda *_: link)
    rank = observer()
    rank.begin(training(), 0)
    rank.written(7, path)
    assert (link.sent, link.closed, clock.now) == (5, True, 145.0)
    assert "not all of it was taken in 45 s" in capsys.readouterr().err


def test_what_a_storage_gives_as_of_another_iteration_than_it_has_is_not_begun_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = observer("newest")
    monkeypatch.setattr(rank, "_fetched", lambda *_: (True, 9, b"state"))
    with pytest.raises(ValueError, match=r"at 127\.0\.0\.1:1 gave iteration 8 as 9"):
        rank.restore(training(9, take=lambda *_: 8), 0)


@pytest.mark.parametrize(
    ("restore", "own", "others", "after", "begun"),
    [
        ("", 9, [9], 0, 0),
        ("newest", 9, [9], 5, 9),
        ("newest", 9, [8], 5, 0),
        ("newest", 0, [0], 5, 0),
        ("newest", 0, [0], 0, 0),
        ("newest", UNKNOWN, [9], 5, 0),
        ("newest", 9, [UNKNOWN], 0, None),
        ("newest", UNKNOWN, [UNKNOWN], 0, None),
        ("only", 9, [9], 0, 9),
        ("only", 0, [0], 0, None),
        ("only", 9, [8], 0, None),
    ],
)
def test_ranks_begin_from_a_storage_together_and_never_from_nothing_where_some_were_given_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    restore: str,
    own: int,
    others: list[int],
    after: int,
    begun: int | None,
) -> None:
    def fetched(*_: object) -> tuple[bool, int, bytes]:
        if own == UNKNOWN:
            raise ConnectionError("closed by the other end")
        return True, own, b"state"

    def take(content: bytes, mine: bool) -> int:
        assert (content, mine) == (b"state", True)
        return own

    rank = observer(restore)
    monkeypatch.setattr(rank, "_fetched", fetched)
    if begun is None:
        with pytest.raises(ValueError, match=r"at 127\.0\.0\.1:1 has no checkpoint for all ranks"):
            rank.restore(training(*others, take=take), after)
    else:
        assert rank.restore(training(*others, take=take), after) == begun
    said = "# storage: rank 0 begins from nothing of the job's storage at 127.0.0.1:1: closed by"
    err = capsys.readouterr().err
    assert (said in err) == (own == UNKNOWN and restore != "")
    only_some = begun == 0 and restore != "" and any((own, *others))
    assert ("the ranks' own are used" in err) == only_some
