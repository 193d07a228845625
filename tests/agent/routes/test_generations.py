"""The committer in private namespaces: real tables, real rules, real carrier."""

from __future__ import annotations

import base64
import gzip
import json
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.fabric.prefixes import aggregated
from orchestrator.hosts.render import pack
from tests.agent.space import Peer, Space, facts

pytestmark = pytest.mark.lab

MAC = "02:00:00:00:00:07"
FIELDS = (
    "rx_pkts",
    "tx_pkts",
    "rx_bytes",
    "tx_bytes",
    "rx_errors",
    "tx_errors",
    "rx_dropped",
    "tx_dropped",
)


def rules(generation: int, port: int = 1, hosts: int = 3) -> dict[str, Any]:
    """A generation that sends everything out of one port."""
    return {
        "generation": generation,
        "routes": [
            [f"10.255.0.{h}/32", f"10.{port}.0.9", f"opt{port}", "10.255.0.1"]
            for h in range(2, 2 + hosts)
        ],
        "neighbours": [[f"10.{port}.0.9", MAC, f"opt{port}"]],
        "rto_min_ms": 5,
        "congctl": "cubic",
    }


def path(host: Space, address: str = "10.255.0.2") -> str:
    """The interface the kernel would send by now; empty where it has no route."""
    done = host.run("ip", "-j", "route", "get", address)
    return str(json.loads(done.stdout)[0]["dev"]) if done.returncode == 0 else ""


def wait_for(question: Callable[[], bool], limit_s: float = 3.0) -> bool:
    end = time.monotonic() + limit_s
    while not question():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def test_staging_changes_no_route_and_a_commit_changes_them_all(host: Space, peer: Peer) -> None:
    assert peer.ask("stage", **rules(1))["routes"] == 3
    assert path(host) == ""
    table = host.ip("route", "show", "table", "7001")
    assert (
        "10.255.0.2 via 10.1.0.9 dev opt1" in table
        and "onlink rto_min lock 5ms congctl cubic" in table
    )
    assert f"lladdr {MAC} PERMANENT" in host.ip("neigh", "show", "dev", "opt1")
    committed = peer.ask("commit", generation=1)
    assert committed["ok"] and committed["previous"] is None
    assert path(host) == "opt1"
    peer.ask("stage", **rules(2, port=2))
    assert path(host) == "opt1"
    assert peer.ask("commit", generation=2)["previous"] == 1
    assert path(host) == "opt2"
    assert host.ip("rule", "show", "pref", "7000").count("lookup") == 1
    assert peer.event("committed")["generation"] == 1


def test_what_the_playbook_hands_over_is_taken_over_the_channel_too(
    host: Space, peer: Peer
) -> None:
    packed = pack([rules(1), rules(2, port=2)], "gpu01")
    assert [s["generation"] for s in peer.ask("stage", packed=packed)["staged"]] == [1, 2]
    peer.ask("commit", generation=2)
    assert "opt2" in path(host)


def test_a_packed_request_that_swells_beyond_bounds_is_refused(peer: Peer) -> None:
    bomb = base64.b64encode(gzip.compress(b" " * (17 << 20))).decode()
    assert "more than 16777216 bytes" in peer.ask("stage", packed=bomb)["error"]
    assert (
        "a list of generations is needed"
        in peer.ask("stage", packed=pack({"generation": 1}, "gpu01"))["error"]
    )


def test_a_commit_nobody_confirms_is_taken_back(host: Space, peer: Peer) -> None:
    for generation in (1, 2):
        peer.ask("stage", **rules(generation, port=generation))
    peer.ask("commit", generation=1)
    peer.ask("confirm", generation=1)
    peer.ask("commit", generation=2, revert_after_s=0.8)
    assert path(host) == "opt2"
    reverted = peer.event("reverted")
    assert (reverted["generation"], reverted["from"], reverted["reason"]) == (
        1,
        2,
        "nobody confirmed in time",
    )
    assert path(host) == "opt1"


def test_a_commit_that_is_repeated_counts_anew_and_goes_back_to_what_was_confirmed(
    host: Space, peer: Peer
) -> None:
    """As `up` does once its job runs: the time to confirm counts from then on, and may be shorter
    than before.
    """
    for generation in (1, 2):
        peer.ask("stage", **rules(generation, port=generation))
    peer.ask("commit", generation=1)
    peer.ask("confirm", generation=1)
    peer.ask("commit", generation=2, revert_after_s=300)
    peer.ask("commit", generation=2, revert_after_s=0.3)
    assert peer.ask("hello")["pending"]["to"] == 1
    assert peer.event("reverted")["generation"] == 1 and path(host) == "opt1"


def test_the_first_commit_taken_back_leaves_no_route(host: Space, peer: Peer) -> None:
    peer.ask("stage", **rules(1))
    peer.ask("commit", generation=1, revert_after_s=0.1)
    assert peer.event("reverted")["generation"] is None
    assert path(host) == ""


def test_a_confirmed_commit_stays(host: Space, peer: Peer) -> None:
    peer.ask("stage", **rules(1))
    peer.ask("commit", generation=1, revert_after_s=0.5)
    assert peer.ask("confirm", generation=1)["was_pending"] is True
    time.sleep(0.6)
    assert path(host) == "opt1" and peer.ask("hello")["pending"] is None


def test_another_generation_cannot_be_confirmed(peer: Peer) -> None:
    peer.ask("stage", **rules(1))
    peer.ask("commit", generation=1, revert_after_s=5)
    refused = peer.ask("confirm", generation=2)
    assert (refused["ok"], refused["error"]) == (False, "generation 2 is not active; 1 is")
    assert peer.ask("hello")["pending"]["generation"] == 1


def test_asking_to_go_back_goes_back_at_once(host: Space, peer: Peer) -> None:
    for generation in (1, 2):
        peer.ask("stage", **rules(generation, port=generation))
        peer.ask("commit", generation=generation)
    assert peer.ask("revert")["generation"] == 1
    assert path(host) == "opt1"
    assert peer.ask("revert")["error"].startswith("nothing to go back to")


def test_a_killed_committer_comes_back_and_still_owes_its_revert(host: Space, peer: Peer) -> None:
    for generation in (1, 2):
        peer.ask("stage", **rules(generation, port=generation))
    peer.ask("commit", generation=1)
    peer.ask("commit", generation=2, revert_after_s=3)
    before = peer.ask("hello")["pid"]
    host.run("kill", "-9", str(before))
    assert wait_for(lambda: host.agent("status")[0].get("pid", before) != before)
    state = host.agent("status")[0]
    assert (state["active"], state["previous"], state["pending"]["to"]) == (2, 1, 1)
    assert path(host) == "opt2"
    assert wait_for(lambda: path(host) == "opt1", 8)
    assert host.agent("status")[0]["active"] == 1


def test_a_revert_that_fell_due_while_nobody_ran_is_done_at_start(host: Space) -> None:
    requests = [
        dict(rules(1), op="stage"),
        dict(rules(2, port=2), op="stage"),
        {"op": "commit", "generation": 1},
    ]
    host.agent("call", [*requests, {"op": "commit", "generation": 2, "revert_after_s": 60}])
    assert host.agent("stop")[0]["stopped"] is True
    host.run("sed", "-i", 's/"at_ns": [0-9]*/"at_ns": 1/', "/run/testbed/state.json")  # time passes
    assert path(host) == "opt2"
    host.agent("start")
    assert wait_for(lambda: path(host) == "opt1")
    assert host.agent("status")[0]["active"] == 1


def test_the_kernel_is_believed_where_the_state_file_disagrees(host: Space) -> None:
    host.agent(
        "call",
        [
            dict(rules(1), op="stage"),
            dict(rules(2, port=2), op="stage"),
            {"op": "commit", "generation": 1},
        ],
    )
    host.agent("stop")
    # died before the flip
    host.run(
        "sh",
        "-c",
        'echo \'{"active": 2, "previous": 1, "pending": null}\' >/run/testbed/state.json',
    )
    host.agent("start")
    state = host.agent("status")[0]
    assert (state["active"], state["previous"], path(host)) == (1, None, "opt1")


def test_an_armed_generation_is_committed_when_its_light_comes(host: Space, peer: Peer) -> None:
    for generation in (1, 2):
        peer.ask("stage", **rules(generation, port=generation))
    peer.ask("commit", generation=1)
    armed = peer.ask("arm", generation=2, when_up=["opt1", "opt2"], deadline_s=5)
    assert armed["waiting"] == ["opt1", "opt2"], (
        "light that is there already is the light about to be taken away"
    )
    for port in ("opt1", "opt2"):
        host.far.ip("link", "set", port, "down")  # type: ignore[attr-defined]
    assert peer.event("link")["carrier"] is False
    host.far.ip("link", "set", "opt1", "up")  # type: ignore[attr-defined]
    time.sleep(0.05)
    assert path(host) == "opt1" and peer.ask("hello")["armed"] == 2
    host.far.ip("link", "set", "opt2", "up")  # type: ignore[attr-defined]
    peer.event("committed")  # of generation 1
    committed = peer.event("committed")
    assert committed["generation"] == 2 and path(host) == "opt2"
    assert committed["t_link_ns"] <= committed["t_commit_ns"]


def test_an_armed_generation_whose_light_never_comes_is_named(host: Space, peer: Peer) -> None:
    peer.ask("stage", **rules(1))
    peer.ask("arm", generation=1, when_up=["opt1", "opt2"], deadline_s=0.1)
    assert peer.event("expired")["missing"] == ["opt1", "opt2"]
    assert path(host) == "" and peer.ask("hello")["armed"] is None


def test_light_that_is_there_counts_when_asked_so(host: Space, peer: Peer) -> None:
    peer.ask("stage", **rules(1))
    assert peer.ask("arm", generation=1, when_up=["opt1"], fresh=False)["waiting"] == []
    assert peer.event("committed")["generation"] == 1


def test_generations_nobody_can_return_to_are_dropped(host: Space, peer: Peer) -> None:
    for generation in range(1, 5):
        peer.ask("stage", **rules(generation, port=1 + generation % 2))
        peer.ask("commit", generation=generation)
        peer.ask("confirm", generation=generation)
    assert peer.ask("hello")["staged"] == [3, 4]
    assert (
        host.ip("route", "show", "table", "7004") != ""
        and host.run("ip", "route", "show", "table", "7001").stdout == ""
    )
    assert peer.ask("clear")["dropped"] == [3, 4]
    assert "PERMANENT" not in host.ip("neigh") and "lookup 70" not in host.ip("rule")


def test_only_the_named_generations_are_cleared_and_the_others_stay_armed_and_in_use(
    host: Space, peer: Peer
) -> None:
    for generation, port in ((1, 1), (2, 2), (3, 1)):
        peer.ask("stage", **rules(generation, port=port))
    peer.ask("arm", generation=3, when_up=["opt1"])
    assert peer.ask("clear", generations=[1, 9])["dropped"] == [1]
    assert (peer.ask("hello")["staged"], peer.ask("hello")["armed"]) == ([2, 3], 3)
    peer.ask("commit", generation=2)
    assert peer.ask("clear", generations=[3])["dropped"] == [3]
    assert (peer.ask("hello")["staged"], peer.ask("hello")["armed"], path(host)) == (
        [2],
        None,
        "opt2",
    )
    peer.ask("stage", **rules(4))
    assert peer.ask("clear", generations=[2])["dropped"] == [2]
    assert (peer.ask("hello")["staged"], peer.ask("hello")["active"], path(host)) == ([4], None, "")


@pytest.mark.parametrize("wrong", [1, ["1"], [True], {}])
def test_generations_to_clear_are_a_list_of_numbers(peer: Peer, wrong: object) -> None:
    peer.ask("stage", **rules(1))
    answer = peer.ask("clear", generations=wrong)
    assert (answer["code"], answer["error"]) == (
        "bad-request",
        "generations: a list of whole numbers is needed",
    )
    assert peer.ask("hello")["staged"] == [1]


def test_a_generation_in_use_is_not_overwritten(host: Space, peer: Peer) -> None:
    peer.ask("stage", **rules(1))
    peer.ask("commit", generation=1)
    assert peer.ask("stage", **rules(1))["unchanged"] is True
    assert (
        peer.ask("stage", **rules(1, port=2))["error"]
        == "generation 1 is active; stage other rules under another number"
    )
    assert (
        peer.ask("stage", **rules(251, port=2))["error"]
        == "generation 251 needs table 7001, which generation 1 in use occupies"
    )
    assert path(host) == "opt1"


def test_the_kernel_sends_every_address_of_a_table_of_prefixes_as_the_single_routes_would(
    host: Space, peer: Peer
) -> None:
    single = [
        (f"10.255.0.{n}/32", f"10.{n % 7 % 2 + 1}.0.9", f"opt{n % 7 % 2 + 1}", "10.255.0.1")
        for n in range(2, 60)
        if n != 33
    ]
    prefixes = [list(row) for row in aggregated(single)]
    assert ["10.255.0.33/32", "", "", ""] in prefixes and len(prefixes) < len(single)
    assert peer.ask("stage", **{**rules(1), "routes": prefixes, "neighbours": []})["routes"] == len(
        prefixes
    )
    peer.ask("commit", generation=1)
    directions = {row[0].removesuffix("/32"): row[2] for row in single}
    found = {
        address: path(host, address) for n in (*range(2, 66), 255) for address in [f"10.255.0.{n}"]
    }
    assert found == {address: directions.get(address, "") for address in found}
    assert "throw 10.255.0.33" in host.ip("route", "show", "table", "7001")
    peer.ask("clear")
    assert path(host) == "" and "throw" not in host.ip("route", "show", "table", "all")


@pytest.mark.parametrize(
    "prefix", ["10.255.0.0/23", "10.255.0.1/31", "10.255.0.0/33", "10.255.0.0/-1"]
)
def test_a_prefix_that_no_list_of_addresses_can_stand_for_is_refused(
    peer: Peer, prefix: str
) -> None:
    answer = peer.ask(
        "stage", **{**rules(1), "routes": [[prefix, "10.1.0.9", "opt1", "10.255.0.1"]]}
    )
    assert (
        answer["code"] == "bad-request"
        and f"{prefix!r} is no prefix of 24 to 32 bits" in answer["error"]
    )


def test_one_refused_message_among_hundreds_is_named(host: Space, peer: Peer) -> None:
    many = {**rules(1, hosts=200)}
    many["routes"][130][3] = "10.9.9.9"
    assert peer.ask("stage", **many)["error"].startswith(
        "route 10.255.0.132/32 via 10.1.0.9 dev opt1 src 10.9.9.9: Invalid argument"
    )


def test_rules_the_kernel_refuses_are_refused_in_its_words(host: Space, peer: Peer) -> None:
    wrong = rules(1)
    wrong["routes"][0][3] = "10.9.9.9"
    answer = peer.ask("stage", **wrong)
    assert (
        answer["error"]
        == "route 10.255.0.2/32 via 10.1.0.9 dev opt1 src 10.9.9.9: Invalid argument: Invalid prefsrc address"
    )
    assert (
        peer.ask("stage", **rules(1, port=7))["error"]
        == "no interface opt7 on this host (it has host0, lo, opt1, opt2)"
    )
    assert (
        peer.ask("commit", generation=1)["error"]
        == "generation 1 is not staged here (staged: none)"
    )


def test_commands_are_run_and_undone_with_their_generation(host: Space, peer: Peer) -> None:
    def command(last: int) -> dict[str, Any]:
        where = ["10.100.7.1", "dev", "opt1"]
        return {
            "do": [
                "ip",
                "neigh",
                "replace",
                *where[:1],
                "lladdr",
                f"02:00:00:00:00:0{last}",
                *where[1:],
            ],
            "undo": ["ip", "neigh", "del", *where],
        }

    peer.ask("stage", generation=1, commands=[command(1)])
    peer.ask("stage", generation=2, commands=[command(2)])
    route = {
        "do": ["ip", "route", "add", "10.100.8.1/32", "dev", "opt1"],
        "undo": ["ip", "route", "del", "10.100.8.1/32"],
    }
    peer.ask(
        "stage", generation=3, commands=[route, {"do": ["ip", "neigh", "nonsense"], "undo": []}]
    )
    peer.ask("commit", generation=1)
    assert "02:00:00:00:00:01" in host.ip("neigh", "show", "dev", "opt1")
    peer.ask("commit", generation=2)
    assert "02:00:00:00:00:02" in host.ip("neigh", "show", "dev", "opt1")
    failed = peer.ask("commit", generation=3)
    assert failed["ok"] is False and failed["error"].startswith("ip neigh nonsense: ")
    assert peer.ask("hello")["active"] == 2
    assert "02:00:00:00:00:02" in host.ip("neigh", "show", "dev", "opt1"), (
        "what the old generation had was put back"
    )
    assert "10.100.8.1" not in host.ip("route"), "and what the new one had managed was taken away"
    peer.ask("clear")
    assert "10.100.7.1" not in host.ip("neigh", "show", "dev", "opt1")


def test_fabric_addresses_never_leave_by_another_network(host: Space) -> None:
    host.ip("route", "add", "default", "dev", "opt2")
    assert path(host, "192.0.2.1") == "opt2"
    assert path(host) == ""


def test_provisioning_twice_changes_nothing_the_second_time(host: Space) -> None:
    assert host.agent("provision", facts("gpu01", 1, 2))[0]["changed"] == []
    assert "10.255.1.1/32" in host.ip("addr", "show", "host0")


def test_provisioning_says_what_the_host_lacks(host: Space) -> None:
    [answer] = host.agent("provision", facts("gpu01", 1, 3))
    assert answer == {
        "ok": False,
        "code": "refused",
        "error": "no interface opt3 on this host (it has host0, lo, opt1, opt2)",
    }
    given = dict(facts("gpu01", 1, 2), sysctls=[["net.ipv4.no_such_thing", "1", True]])
    assert (
        host.agent("provision", given)[0]["error"]
        == "sysctl net.ipv4.no_such_thing = 1: this kernel has no net.ipv4.no_such_thing"
    )


def test_starting_twice_runs_one_committer(host: Space) -> None:
    pid = host.agent("status")[0]["pid"]
    assert host.agent("start")[0] == {"pid": pid, "started": False}
    assert len(host.daemon_pids()) == 2


def test_a_link_that_changes_is_told_at_once(host: Space, peer: Peer) -> None:
    host.far.ip("link", "set", "opt2", "down")  # type: ignore[attr-defined]
    event = peer.event("link")
    assert (event["port"], event["interface"], event["carrier"]) == (2, "opt2", False)


def sampled(event: dict[str, Any]) -> list[tuple[int, int, dict[int, tuple[int, ...]]]]:
    """The rows of a batch: when, which ports have carrier (bit by bit), the counters of each
    port.
    """
    raw, ports = zlib.decompress(base64.b64decode(event["rows"])), event["numbers"]
    rows = struct.iter_unpack(f"=qQ{8 * len(ports)}Q", raw)
    return [(r[0], r[1], {n: r[2 + 8 * i : 10 + 8 * i] for i, n in enumerate(ports)}) for r in rows]


def test_counters_are_sampled_at_the_rate_asked_for_and_sent_many_at_a_time_until_stopped(
    host: Space, peer: Peer
) -> None:
    first = peer.ask("counters", interval_s=0.002, batch_s=0.1)
    assert set(first["ports"]) == {"1", "2"}
    batches = [peer.event("counters") for _ in range(3)]
    rows = [row for event in batches for row in sampled(event)]
    times = [t for t, _, _ in rows]
    assert times == sorted(set(times)) and times[0] > first["t_ns"]
    taken, missed = len(rows), sum(event["missed"] for event in batches)
    assert (
        (times[-1] - times[0]) // 2_000_000 - 1
        <= taken + missed
        <= (batches[-1]["t_ns"] - first["t_ns"]) // 2_000_000 + 3
    )
    assert all(bits == 0b11 for _, bits, _ in rows)
    before, counted = first["ports"]["1"], rows[-1][2][1]
    assert peer.ask("counters")["ok"] and peer.event("counters"), "a look ends nothing"
    now = peer.ask("counters", interval_s=0)["ports"]["1"]
    assert all(
        b <= c <= n
        for b, c, n in zip(
            [before[f] for f in FIELDS], counted, [now[f] for f in FIELDS], strict=True
        )
    )
    peer.events.clear()
    assert peer.line(0.2) is None


def test_samples_go_on_when_an_interface_comes_or_goes_and_say_which_ports_have_light(
    host: Space, peer: Peer
) -> None:
    rows_end = peer.ask("counters", interval_s=0.005, batch_s=0.02)["t_ns"]
    peer.event("counters")
    host.ip("link", "add", "name", "zz0", "type", "bridge")
    host.far.ip("link", "set", "opt2", "down")  # type: ignore[attr-defined]

    def dark() -> bool:
        return any(bits == 0b01 for _, bits, _ in sampled(peer.event("counters")))

    assert wait_for(dark)
    host.ip("link", "del", "zz0")
    assert wait_for(lambda: sampled(peer.event("counters"))[-1][2].keys() == {1, 2})
    lost = peer.ask("counters")["downs"]
    assert lost["2"]["tx_bytes"] >= 0 and rows_end < lost["2"]["t_ns"]


def test_a_slow_sample_knows_all_that_became_of_a_carrier_since_the_last_one(
    host: Space, peer: Peer
) -> None:
    peer.ask("counters", interval_s=0.2, batch_s=0.2)
    peer.event("counters")
    for state in ("down", "up") * 6:
        host.far.ip("link", "set", "opt1", state)  # type: ignore[attr-defined]
    assert wait_for(lambda: peer.ask("hello")["ports"]["1"]["carrier"])
    lit = time.monotonic_ns()
    rows: list[tuple[int, int, dict[int, tuple[int, ...]]]] = []
    while not rows:
        rows = [row for row in sampled(peer.event("counters")) if row[0] > lit]
    assert rows[0][1] == 0b11


def test_what_ports_had_counted_is_kept_of_each_darkness_however_short(
    host: Space, peer: Peer
) -> None:
    carrier = peer.ask("hello")["ports"]["1"]["carrier"]
    assert carrier
    notices = []
    for pause_s in (0.0, 0.05):
        host.far.ip("link", "set", "opt1", "down")  # type: ignore[attr-defined]
        time.sleep(pause_s)
        host.far.ip("link", "set", "opt1", "up")  # type: ignore[attr-defined]
        assert wait_for(lambda: peer.ask("hello")["ports"]["1"]["carrier"])
        notices.append(peer.ask("counters")["downs"]["1"]["t_ns"])
    assert notices[0] < notices[1] < time.monotonic_ns()


@pytest.mark.parametrize(
    "wrong", [{"interval_s": 0.0001}, {"interval_s": "often"}, {"interval_s": 0.1, "batch_s": -1}]
)
def test_a_rate_that_cannot_be_is_refused_in_words(peer: Peer, wrong: dict[str, Any]) -> None:
    answer = peer.ask("counters", **wrong)
    assert answer["code"] == "bad-request" and (
        "interval_s" in answer["error"] or "batch_s" in answer["error"]
    )


def test_while_it_waits_for_light_a_host_sends_no_samples_and_afterwards_all_of_them(
    host: Space, peer: Peer
) -> None:
    peer.ask("stage", **rules(5))
    host.far.ip("link", "set", "opt1", "down")  # type: ignore[attr-defined]
    assert wait_for(lambda: peer.ask("hello")["ports"]["1"]["carrier"] is False)
    peer.ask("counters", interval_s=0.005, batch_s=0.02)
    peer.event("counters")
    armed = peer.ask("arm", generation=5, when_up=["opt1"])
    assert armed["waiting"] == ["opt1"]
    peer.events.clear()
    began = time.monotonic_ns()
    assert peer.line(0.3) is None
    ended = time.monotonic_ns()
    host.far.ip("link", "set", "opt1", "up")  # type: ignore[attr-defined]
    peer.event("committed")
    times = [t for t, _, _ in sampled(peer.event("counters"))]
    while times[-1] < ended:
        times += [t for t, _, _ in sampled(peer.event("counters"))]
    assert times == sorted(times) and any(began < t < ended for t in times), "none was dropped"


def test_the_process_that_samples_ends_with_its_client(host: Space) -> None:
    def samplers() -> int:
        return len(host.daemon_pids()) - 2

    with_samples = host.attach()
    with_samples.ask("counters", interval_s=0.01)
    assert samplers() == 1
    with_samples.ask("counters", interval_s=0.02)
    assert samplers() == 1, "another rate takes the place of the first"
    with_samples.close()
    assert wait_for(lambda: samplers() == 0)


def test_a_host_tells_when_its_neighbours_answer_over_the_new_light(
    host: Space, peer: Peer
) -> None:
    peer.ask("stage", **rules(6))
    host.far.ip("link", "set", "opt1", "down")  # type: ignore[attr-defined]
    assert wait_for(lambda: peer.ask("hello")["ports"]["1"]["carrier"] is False)
    assert "cross" in peer.ask("arm", generation=6, when_up=["opt1"], cross=[1])["error"]
    peer.ask("arm", generation=6, when_up=["opt1"], cross=["10.255.0.2"])
    host.far.ip("link", "set", "opt1", "up")  # type: ignore[attr-defined]
    peer.event("committed")
    silent = peer.event("crossed", 4.0)
    assert (silent["answered"], silent["asked"]) == (0, 1), "nobody is there to answer"
