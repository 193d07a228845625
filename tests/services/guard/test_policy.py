"""What the guard does about a job, over all combinations of what it may see; and what it never
does.
"""

from __future__ import annotations

import random
from itertools import product

import pytest

from optics.ranks import signal_of
from orchestrator.hosts.late import START_S
from orchestrator.services.guard.policy import (
    CALM_S,
    FIRST_BACKOFF_S,
    HANG_LEAST_S,
    LAST_BACKOFF_S,
    MOST_RESTARTS,
    SILENT_S,
    Action,
    Budget,
    PastRecovery,
    RankEnd,
    Sight,
    backoff_s,
    decide_recovery,
    fault,
    hang_s,
    in_a_row,
)
from orchestrator.store import recoveries

ENDS = (
    RankEnd("running"),
    RankEnd("exited", 0),
    RankEnd("exited", 1),
    RankEnd("exited", 2),
    RankEnd("exited", 75),
    RankEnd("exited", 137),
    RankEnd("killed"),
    RankEnd("absent"),
    RankEnd("silent"),
)
RANKS = ("gpu01", "gpu02", "gpu03")
THREE = Budget(3, 3600.0)
GOES_ON = PastRecovery(7, (), 5.0, 0.0, "")
DONE = PastRecovery(7, ("gpu02",), 900.0, 880.0, "ok")
EARLIER = PastRecovery(6, ("gpu02",), 900.0, 880.0, "ok")
FAILED = PastRecovery(7, (), 4.0, 2.0, "failed")
ENDLESS = PastRecovery(7, (), 4000.0, 3990.0, "")
OLD = PastRecovery(1, (), 4000.0, 3990.0, "ok")
PASTS = (
    (),
    (EARLIER,),
    (DONE,),
    (GOES_ON,),
    (FAILED,),
    (EARLIER,) * 2,
    (EARLIER,) * 3,
    (OLD,) * 9,
    (ENDLESS,),
    (EARLIER, FAILED, OLD),
)


def sight(
    *ends: RankEnd,
    recorded: str = "running",
    still_s: float = 0.0,
    silent_s: float = 60.0,
    **more: object,
) -> Sight:
    silent = {
        host: silent_s for host, end in zip(RANKS, ends, strict=True) if end.state == "silent"
    }
    return Sight(7, recorded, dict(zip(RANKS, ends, strict=True)), still_s, 0.1, silent, **more)  # type: ignore[arg-type]


def every() -> list[tuple[Sight, tuple[PastRecovery, ...], Budget, tuple[str, ...]]]:
    states = [
        sight(*ends, recorded=recorded, still_s=still_s, silent_s=silent_s)
        for ends in product(ENDS, repeat=3)
        for recorded in ("running", "failed", "stopped", "finished")
        for still_s in (0.0, 60.0)
        for silent_s in (1.0, 60.0)
    ]
    found = []
    for state in states:
        found += [(state, past, THREE, spares) for past in PASTS for spares in ((), ("gpu11",))]
    return found


def test_over_everything_it_may_see_it_acts_only_within_its_rules() -> None:
    acted = set()
    for state, past, budget, spares in every():
        action = decide_recovery(state, past, budget, spares)
        recent = [one for one in past if one.age_s < budget.per_s]
        acts = action.kind in ("restart", "evict")
        acted.add(action.kind)
        assert (action.kind == "none") == (not action.why), (state, past, action)
        if not acts:
            continue
        assert state.recorded in ("running", "failed"), (
            "one that was stopped or has finished is left alone"
        )
        assert len(recent) < budget.restarts, "never more than the budget"
        assert not any(one.job == state.job and one.outcome == "ok" for one in past), (
            "never twice on one fault"
        )
        assert all(one.outcome for one in past), "never two at a time"
        assert not recent or min(one.idle_s for one in recent) >= backoff_s(in_a_row(recent))
        found = fault(state)
        assert found is not None and found.kind != "own"
        silent = {host for host, end in state.ranks.items() if end.state == "silent"}
        if action.kind == "evict":
            assert (
                action.hosts
                and len(action.hosts) <= len(spares)
                and set(action.hosts) <= set(RANKS)
            )
        assert silent <= set(action.hosts) if silent else True, (
            "none is started on a host that does not answer"
        )
        assert not silent or min(state.silent_s.values()) >= SILENT_S
    assert acted == {"none", "wait", "report", "restart", "evict"}


@pytest.mark.parametrize(
    "ends", list(product(ENDS, repeat=2)), ids=lambda ends: " ".join(map(str, ends))
)
def test_a_rank_that_ended_from_outside_or_lost_a_peer_is_a_fault_and_a_mistake_of_the_program_is_another(
    ends: tuple[RankEnd, RankEnd],
) -> None:
    found = fault(sight(*ends, RankEnd("running")))
    states = {end.state for end in ends}
    codes = {end.code for end in ends} - {None, 0}
    if 2 in codes:
        assert found is not None and found.kind == "own", (
            "the others lost it because it could not start"
        )
    elif "silent" in states:
        assert (found is not None and found.kind == "dead-host") == bool(
            {"killed", "absent"} & states or codes
        )
    elif {"killed", "absent"} & states or {75, 137} & codes:
        assert found is not None and found.kind == "lost"
    elif codes:
        assert (
            found is not None
            and found.kind == "own"
            and decide_recovery(sight(*ends, RankEnd("running")), (), THREE, ()).kind == "report"
        )
    else:
        assert found is None


def test_a_job_hangs_after_three_of_its_longest_iterations_and_one_that_has_ended_none_after_what_a_start_may_take() -> (
    None
):
    running = [RankEnd("running")] * 3
    assert fault(sight(*running, still_s=HANG_LEAST_S - 0.1)) is None
    found = fault(sight(*running, still_s=HANG_LEAST_S))
    assert (
        found is not None
        and found.kind == "hang"
        and not found.hosts
        and "40 times its longest iteration" in found.why
    )
    slow = Sight(7, "running", dict.fromkeys(RANKS, RankEnd("running")), 20.0, 10.0)
    assert hang_s(10.0) == 30.0 and fault(slow) is None
    assert hang_s(1000.0) == 1300.0, "never sooner than what it was seen to take"
    assert hang_s(0.1, 300.0) == hang_s(0.0, 300.0) == 300.0
    assert (
        fault(Sight(7, "running", dict.fromkeys(RANKS, RankEnd("running")), START_S - 1, 0.0))
        is None
    )
    first = fault(Sight(7, "running", dict.fromkeys(RANKS, RankEnd("running")), START_S, 0.0))
    assert first is not None and first.kind == "hang" and "and no iteration has ended" in first.why
    blamed = fault(sight(*running, still_s=9.0, blamed="gpu02"))
    assert blamed is not None and blamed.hosts == ("gpu02",) and "wait for gpu02" in blamed.why


def test_all_hosts_silent_is_no_fault_of_a_job() -> None:
    assert fault(sight(*[RankEnd("silent")] * 3, still_s=60.0)) is None


def test_a_job_that_no_host_knows_is_left_alone_and_told_of() -> None:
    action = decide_recovery(sight(*[RankEnd("absent")] * 3), (), THREE, ())
    assert (action.kind, action.hosts) == (
        "report",
        (),
    ) and "gpu01, gpu02, gpu03: none knows of it" in action.why


@pytest.mark.parametrize(
    ("code", "lost"),
    [(1, False), (128, False), (129, True), (143, True), (192, True), (193, False)],
)
def test_a_rank_is_lost_if_its_exit_code_is_that_of_a_signal(code: int, lost: bool) -> None:
    assert RankEnd("exited", code).lost is lost and (signal_of(code) is not None) is lost


def test_a_host_whose_ranks_were_lost_twice_before_is_replaced_where_there_is_a_spare() -> None:
    state = sight(RankEnd("running"), RankEnd("killed"), RankEnd("exited", 75))
    once, twice = (EARLIER,), (EARLIER, EARLIER)
    assert decide_recovery(state, once, THREE, ("gpu11",)) == Action(
        "restart", "gpu02: killed", ("gpu02",)
    )
    action = decide_recovery(state, twice, THREE, ("gpu11",))
    assert (action.kind, action.hosts) == ("evict", ("gpu02",)) and "third time" in action.why
    assert decide_recovery(state, twice, THREE, ()).kind == "restart"


def test_a_dead_host_is_waited_for_then_replaced_and_without_a_spare_named() -> None:
    early = sight(RankEnd("exited", 75), RankEnd("silent"), RankEnd("exited", 75), silent_s=4.0)
    late = sight(RankEnd("exited", 75), RankEnd("silent"), RankEnd("exited", 75), silent_s=SILENT_S)
    waits = decide_recovery(early, (), THREE, ("gpu11",))
    assert waits.kind == "wait" and waits.after_s == SILENT_S - 4.0
    assert decide_recovery(late, (), THREE, ("gpu11",)).kind == "evict"
    without = decide_recovery(late, (), THREE, ())
    assert (
        without.kind == "report"
        and "no usable spares for 1 host" in without.why
        and "gpu02 answers again" in without.why
    )


def test_pauses_double_up_to_a_limit() -> None:
    assert [backoff_s(n) for n in range(5)] == [
        0.0,
        FIRST_BACKOFF_S,
        20.0,
        40.0,
        80.0,
    ] and backoff_s(50) == LAST_BACKOFF_S


def test_pauses_grow_in_a_row_of_attempts_and_a_job_that_ran_ends_the_row() -> None:
    state = sight(RankEnd("killed"), RankEnd("running"), RankEnd("running"))
    many = Budget(100, 3600.0)

    def waits(*attempts: tuple[float, float]) -> float:
        """After attempts that began and ended so long ago (s), newest first."""
        return decide_recovery(
            state,
            [PastRecovery(n, (), age, idle, "failed") for n, (age, idle) in enumerate(attempts)],
            many,
            (),
        ).after_s

    assert waits() == 0.0 and waits((5.0, 4.0)) == FIRST_BACKOFF_S - 4.0
    assert waits((5.0, 4.0), (17.0, 16.0)) == 20.0 - 4.0, (
        "11 s between two that were 10 s apart by order"
    )
    assert waits((5.0, 4.0), (17.0, 16.0), (48.0, 47.0)) == 40.0 - 4.0
    ran = 5.0 + FIRST_BACKOFF_S + CALM_S
    assert waits((5.0, 4.0), (ran + 1.0, ran)) == FIRST_BACKOFF_S - 4.0, (
        "it ran for a while between them"
    )
    assert waits((ran, ran)) == 0.0 and in_a_row([]) == 0


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_no_period_has_more_attempts_than_the_budget(seed: int) -> None:
    """Time goes on by random steps; attempts fail, succeed or die; the job's ids grow as it is
    replaced.
    """
    dice = random.Random(seed)
    budget = Budget(dice.randint(1, 4), dice.choice([60.0, 600.0]))
    now, job, began = 0.0, 1, list[tuple[float, float, int, str]]()
    for _ in range(400):
        now += dice.expovariate(1 / 5.0)
        past = [PastRecovery(j, (), now - at, now - end, how) for at, end, j, how in began]
        state = Sight(
            job,
            "running",
            {"gpu01": dice.choice(ENDS), "gpu02": dice.choice(ENDS)},
            0.0,
            0.1,
            {"gpu01": 99, "gpu02": 99},
        )
        if decide_recovery(state, past, budget, dice.choice([(), ("gpu11",)])).kind in (
            "restart",
            "evict",
        ):
            how = dice.choice(["ok", "failed", "died"])
            began.append((now, now + 1.0, job, how))
            now, job = now + 1.0, job + (how == "ok")
    assert began
    for at, *_ in began:
        assert sum(at <= other < at + budget.per_s for other, *_ in began) <= budget.restarts


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("3/h", Budget(3, 3600)),
        ("2/30m", Budget(2, 1800)),
        ("10/d", Budget(10, 86400)),
        ("1/45s", Budget(1, 45)),
    ],
)
def test_a_budget_is_read_and_written_alike(text: str, budget: Budget) -> None:
    assert Budget.of(text) == budget and str(budget) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "h",
        "3/",
        "/h",
        "-1/h",
        "3/0h",
        "1e3/h",
        "3/h/h",
        "3 per hour",
        "99999/h",
        "3.5/h",
        "٣/h",
    ],
)
def test_a_text_that_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"3/h|period of zero"):
        Budget.of(text)


def test_a_budget_of_more_attempts_than_are_counted_is_refused() -> None:
    assert Budget.of("100/d").restarts == MOST_RESTARTS < recoveries.KEPT
    with pytest.raises(ValueError, match=r"more than 100 recoveries; a shorter period"):
        Budget.of("101/d")


def test_a_budget_of_nothing_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="leave --jobs out"):
        Budget.of("0/h")
