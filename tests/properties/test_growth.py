"""The judge of how phases grow with a lab: what grows faster than it may is named, also behind
fixed costs.
"""

from __future__ import annotations

import pytest

from benchmarks.growth import COMMANDS, slopes, stride, table


def sizes(**phases: tuple[float, float]) -> dict[int, dict[str, object]]:
    """Measured sizes: each phase takes its first number of seconds, and its second at 192 hosts,
    growing as the square of hosts.
    """

    def command(hosts: int) -> dict[str, object]:
        seconds = {
            name: fixed + (hosts / 192) ** 2 * most for name, (fixed, most) in phases.items()
        }
        spent = {"program": 1.0, "switches": 0.1, "hosts": 1.0, "others": 0.0}
        return {
            "phases": seconds,
            "cpu_s": spent,
            "memory_mb": {"program": 90.0},
            "routes": hosts * 4,
            "pairs": hosts,
        }

    return {
        hosts: {"lab_s": 1.0, "null_s": 1.0, **{name: command(hosts) for name in COMMANDS}}
        for hosts in (12, 24, 48, 96, 192)
    }


def test_a_quadratic_phase_behind_a_fixed_cost_is_named_and_one_that_treats_all_pairs_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = table(sizes(observe=(1.0, 10.0), plan=(0.0, 10.0), arm=(1.0, 0.0), link=(0.0, 0.1)))
    assert [line.rpartition(" ")[0] for line in wrong] == [
        f"{text}: observe" for text in COMMANDS.values()
    ]
    assert "all pairs: plan: " in capsys.readouterr().out


def test_slopes_are_those_of_the_power_also_where_a_size_was_too_short_to_be_timed() -> None:
    assert slopes({12: 1.2, 24: 2.4, 48: 4.8}) == pytest.approx((1.0, 1.0))
    assert slopes({12: 0.0, 24: 0.001}) == pytest.approx((0.0, 0.0))


def test_the_second_ring_of_every_size_passes_all_hosts() -> None:
    for hosts in (12, 24, 48, 96, 192):
        assert len({k * stride(hosts) % hosts for k in range(hosts)}) == hosts
