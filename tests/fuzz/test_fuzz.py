"""The kept corpus, pieces of it put together again, and arbitrary bytes: every reader keeps its
promise.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import MARK, targets

CORPUS = Path(__file__).with_name("corpus")
TARGETS = targets()
CODECS = [name for name in TARGETS if not name.startswith(("driver-", "emulated-"))]
EXAMPLES = {"driver-": 0.6, "emulated-": 0.4, "inventory": 0.6, "plan": 1}
"""How many a target gets, in those of a property: codecs four times as many."""
LARGE = 64 * 1024
"""How the time grows with the length: `make bench NAME=reader_growth`."""


def kept(name: str) -> list[bytes]:
    return [file.read_bytes() for file in sorted((CORPUS / name).iterdir())]


def examples(name: str) -> int:
    share = next((share for start, share in EXAMPLES.items() if name.startswith(start)), 4)
    return int(share * settings().max_examples)


@pytest.mark.parametrize("name", TARGETS)
def test_every_kept_input_is_read_or_refused(name: str) -> None:
    inputs = kept(name)
    assert inputs, f"no corpus for {name}"
    for data in inputs:
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_break_a_promise(name: str) -> None:
    inputs = kept(name)
    cut = st.builds(
        lambda data, at, size: data[at : at + size],
        st.sampled_from(inputs),
        st.integers(0, 400),
        st.integers(0, 200),
    )
    arbitrary = st.binary(max_size=40)
    parts = st.lists(
        cut | arbitrary | st.just(MARK) | st.sampled_from(inputs), min_size=1, max_size=6
    )

    @settings(
        max_examples=examples(name),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(parts.map(b"".join))
    def holds(data: bytes) -> None:
        TARGETS[name](data[:4096])

    holds()


@pytest.mark.parametrize("name", CODECS)
def test_an_input_of_any_length_is_read_or_refused(name: str) -> None:
    for data in sorted(kept(name), key=len)[-3:]:
        TARGETS[name].__wrapped__(data * (LARGE // max(1, len(data))))  # type: ignore[attr-defined]


def test_the_corpus_is_small_and_belongs_to_targets() -> None:
    files = [file for file in CORPUS.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 300 * 1024
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)
