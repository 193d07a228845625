"""The glass by itself: exclusion, time, loss, power."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from emulators.optics.plant import Plant

PORTS = [str(n) for n in range(1, 7)]
SETTLE_S = 0.05


def split_plant(seed: int = 1, **more: float) -> Plant:
    return Plant("p", PORTS, [str(n) for n in range(7, 13)], SETTLE_S, seed, **more)


def duplex_plant(seed: int = 1) -> Plant:
    return Plant("d", PORTS, PORTS, SETTLE_S, seed, bulk_settle_s=0.2)


class OnePortOneCircuit(RuleBasedStateMachine):
    """Whatever is asked, in whatever order and with whatever gone wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.plant, self.now = split_plant(), 100.0
        self.made_at: dict[tuple[str, str], float] = {}

    pairs = st.lists(
        st.tuples(st.sampled_from([*PORTS, "99"]), st.sampled_from([str(n) for n in range(6, 13)])),
        max_size=5,
    )

    @rule(pairs=pairs)
    def connect(self, pairs: list[tuple[str, str]]) -> None:
        before = set(self.plant.pairs())
        refused = self.plant.connect(pairs, self.now)
        assert set(self.plant.pairs()) == before | {p for p in pairs if p not in refused}
        self.made_at |= {p: self.now for p in self.plant.pairs() if p not in before}

    @rule(pairs=pairs)
    def disconnect(self, pairs: list[tuple[str, str]]) -> None:
        refused = self.plant.disconnect(pairs, self.now)
        removed = set(pairs) - set(refused)
        assert not removed & set(self.plant.pairs())
        assert not removed & self.plant.lit(self.now)

    @rule(seconds=st.sampled_from([0.001, 0.02, 0.03, 0.05, 1.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(port=st.sampled_from(PORTS), wrong=st.sampled_from(["stuck", "failed", "cut"]))
    def spoil(self, port: str, wrong: str) -> None:
        self.plant.impair(lambda w: getattr(w, wrong).symmetric_difference_update({("in", port)}))

    @rule(port=st.sampled_from(PORTS), disabled=st.booleans())
    def shutter(self, port: str, disabled: bool) -> None:
        self.plant.set_disabled([("in", port)], disabled, self.now)

    @precondition(lambda self: self.plant.pairs())
    @rule()
    def power_cycle(self) -> None:
        kept = self.plant.pairs()
        self.plant.power_cycle(self.now)
        assert not self.plant.pairs()
        self.plant.restore(kept, self.now, 0.5)
        self.made_at |= dict.fromkeys(kept, self.now + 0.5)

    @invariant()
    def a_port_is_in_one_circuit_at_most(self) -> None:
        pairs = self.plant.pairs()
        assert len({i for i, _ in pairs}) == len({e for _, e in pairs}) == len(pairs)

    @invariant()
    def light_comes_after_settling_only(self) -> None:
        for pair in self.plant.lit(self.now):
            assert pair in self.plant.pairs()
            assert self.now >= self.made_at[pair] + SETTLE_S

    @invariant()
    def what_is_remembered_of_the_light_is_so(self) -> None:
        held = {pair: self.plant.circuit(("in", pair[0])) for pair in self.plant.pairs()}
        assert self.plant.lit(self.now) == {
            pair for pair, c in held.items() if c and self.plant.passes(c, self.now)
        }

    @invariant()
    def a_healthy_circuit_is_lit_when_it_has_settled(self) -> None:
        wrong = self.plant.wrong.stuck | self.plant.wrong.failed | self.plant.wrong.cut
        lit, due = self.plant.lit(self.now), self.plant.next_event(self.now)
        assert due is None or due > self.now
        for ingress, egress in self.plant.pairs() if due is None else ():
            if ("in", ingress) not in wrong and not self.plant.disabled(("in", ingress)):
                assert (ingress, egress) in lit


TestOnePortOneCircuit = OnePortOneCircuit.TestCase
TestOnePortOneCircuit.settings = settings(max_examples=50, stateful_step_count=15, deadline=None)


def test_breaking_is_dark_at_once_and_making_is_lit_after_the_settling_time() -> None:
    plant = split_plant()
    plant.connect([("1", "7"), ("2", "8")], 10.0)
    assert plant.lit(10.0499) == frozenset()
    assert plant.next_event(10.0) == pytest.approx(10.05)
    assert plant.lit(10.05) == {("1", "7"), ("2", "8")}
    plant.disconnect([("1", "7")], 11.0)
    assert plant.lit(11.0) == {("2", "8")}
    assert [(e.at_s, e.pair, e.what) for e in plant.history if e.pair == ("1", "7")] == [
        (10.0, ("1", "7"), "making"), (10.05, ("1", "7"), "lit"), (11.0, ("1", "7"), "broken"),
    ]  # fmt: skip


def test_a_circuit_broken_before_it_settled_was_never_lit() -> None:
    plant = split_plant()
    plant.connect([("1", "7")], 0.0)
    plant.disconnect([("1", "7")], 0.01)
    assert plant.next_event(0.01) is None
    assert [e.what for e in plant.history] == ["making", "broken"]


def test_a_mems_set_takes_longer_than_one_duplex_circuit() -> None:
    plant = duplex_plant()
    plant.connect([("1", "2"), ("2", "1")], 0.0)
    assert plant.next_event(0.0) == pytest.approx(SETTLE_S)
    plant.connect([("3", "4"), ("4", "3"), ("5", "6"), ("6", "5")], 1.0)
    assert plant.next_event(1.0) == pytest.approx(1.2)


def test_a_duplex_label_has_two_sides_and_a_split_label_one() -> None:
    assert split_plant().sides("7") == (("out", "7"),)
    assert duplex_plant().sides("1") == (("in", "1"), ("out", "1"))
    assert duplex_plant().sides("1/out") == (("out", "1"),)
    with pytest.raises(KeyError, match="no port 1/out"):
        split_plant().sides("1/out")


def test_an_attempt_on_a_busy_port_is_refused_and_kept_as_a_violation() -> None:
    plant = split_plant()
    plant.connect([("1", "7")], 1.0)
    assert plant.connect([("1", "8"), ("2", "7"), ("3", "9")], 2.0) == {
        ("1", "8"): "port 1 in use",
        ("2", "7"): "port 7 in use",
    }
    assert [(v.at_s, v.pair) for v in plant.violations] == [(2.0, ("1", "8")), (2.0, ("2", "7"))]
    assert set(plant.pairs()) == {("1", "7"), ("3", "9")}


def test_making_what_is_made_disturbs_nothing() -> None:
    plant = split_plant()
    plant.connect([("1", "7")], 1.0)
    assert plant.connect([("1", "7")], 5.0) == {}
    assert plant.since(("1", "7")) == 1.0
    assert plant.lit(5.0) == {("1", "7")}
    assert not plant.violations


@given(seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_the_same_seed_gives_the_same_losses_and_powers(seed: int) -> None:
    def story(plant: Plant) -> list[float | None]:
        plant.connect([("1", "7"), ("2", "8")], 0.0)
        return [
            plant.loss_db(("1", "7")),
            plant.loss_db(("2", "8")),
            *(plant.power_dbm(("out", p), 1.0) for p in ("7", "8", "9")),
        ]

    assert story(split_plant(seed)) == story(split_plant(seed))
    assert story(split_plant(seed)) != story(split_plant(seed + 1))


def test_losses_stay_in_the_data_sheet_and_repeat_within_a_tenth() -> None:
    plant = Plant("big", [str(n) for n in range(100)], [f"o{n}" for n in range(100)], 0.0)
    pairs = [(str(n), f"o{n}") for n in range(100)]
    plant.connect(pairs, 0.0)
    first = [plant.loss_db(p) or 0.0 for p in pairs]
    assert 0.0 < min(first) <= max(first) <= 2.7
    assert sum(first) / len(first) == pytest.approx(1.5, abs=0.15)
    plant.disconnect(pairs, 1.0)
    plant.connect(pairs, 2.0)
    second = [plant.loss_db(p) or 0.0 for p in pairs]
    assert first != second
    assert max(abs(a - b) for a, b in zip(first, second, strict=True)) <= 0.1 + 1e-9


def test_another_seed_draws_other_losses() -> None:
    losses = []
    for seed in (1, 2):
        plant = split_plant(seed)
        plant.connect([("1", "7")], 0.0)
        losses.append(plant.loss_db(("1", "7")))
    assert losses[0] != losses[1]


def test_power_follows_the_light() -> None:
    plant = split_plant()
    plant.connect([("1", "7"), ("2", "8")], 0.0)
    plant.set_input("1", 3.0)
    plant.set_input("2", None)
    loss = plant.loss_db(("1", "7")) or 0.0
    assert plant.power_dbm(("out", "7"), 1.0) == pytest.approx(3.0 - loss, abs=1.2)
    assert plant.power_dbm(("in", "1"), 1.0) == pytest.approx(3.0, abs=1.2)
    assert plant.power_dbm(("out", "8"), 1.0) == pytest.approx(-50.0, abs=6.0)
    assert plant.power_dbm(("out", "9"), 1.0) == plant.floor_dbm
    plant.set_input("2", -80.0)
    assert plant.power_dbm(("in", "2"), 1.0) == pytest.approx(-50.0, abs=6.0)
    assert plant.lit(1.0) == {("1", "7")}


def test_a_circuit_too_weak_for_a_receiver_is_not_lit() -> None:
    plant = split_plant()
    plant.connect([("1", "7")], 0.0)
    plant.impair(lambda w: w.extra_loss_db.update({("out", "7"): 40.0}))
    assert plant.lit(1.0) == frozenset()
    assert plant.light(1.0) == {("1", "7")}


def test_a_fibre_broken_behind_the_egress_is_dark_outside_and_bright_inside() -> None:
    plant = split_plant()
    plant.connect([("1", "7")], 0.0)
    plant.impair(lambda w: w.cut.add(("out", "7")))
    circuit = plant.circuit(("in", "1"))
    assert circuit is not None
    assert plant.lit(1.0) == frozenset()
    assert plant.bright(circuit, 1.0)


def test_a_shutter_darkens_at_once_and_light_returns_after_settling() -> None:
    plant = split_plant()
    plant.connect([("1", "7")], 0.0)
    plant.set_disabled([("in", "1")], True, 1.0)
    assert plant.lit(1.0) == frozenset()
    plant.set_disabled([("in", "1")], False, 2.0)
    assert plant.lit(2.04) == frozenset()
    assert plant.lit(2.05) == {("1", "7")}


def test_presets_are_lit_from_the_start_and_must_fit() -> None:
    plant = split_plant()
    plant.preset([("1", "7")])
    assert plant.lit(0.0) == {("1", "7")}
    assert plant.writes == 0
    with pytest.raises(ValueError, match="port 1 in use"):
        plant.preset([("1", "8")])
