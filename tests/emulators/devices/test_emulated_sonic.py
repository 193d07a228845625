"""SONiC OCS: configuration at once, hardware later, and the content of the tables and databases
meanwhile.
"""

import json
import re
from ast import literal_eval

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulators.devices.bench import Bench

ADD, DELETE = "config ocs cross-connect add {} update", "config ocs cross-connect delete {}"


def sonic(**overrides: object) -> Bench:
    return Bench("sonic-ocs", **overrides)  # type: ignore[arg-type]


def rows(box: Bench, what: str) -> list[list[str]]:
    output, status = box.once(f"show ocs cross-connect {what}")
    assert status == 0
    titles, rule, *body = output.splitlines()
    assert titles.split()[:3] == ["id", "a_side", "b_side"]
    assert set(rule) == {"-", " "}
    return [line.split() for line in body]


def test_the_configuration_is_there_at_once_and_the_hardware_follows() -> None:
    box = sonic(apply_s=1.0, settle_s=0.5)
    output, status = box.once("sudo " + ADD.format("1A-2B"))
    assert "cross-connect succeeded" in output
    assert status == 0
    assert rows(box, "config") == [["1A-2B", "1A", "2B"]]
    seen = []
    for _ in range(4):
        seen.append(rows(box, "status")[0][3:])
        assert (box.light() == {("1A", "2B")}) is (seen[-1] == ["tuned", "tuned"])
        box.wait(0.6)
    assert seen == [
        ["blocked", "blocked"],
        ["blocked", "blocked"],
        ["tuning", "tuning"],
        ["tuned", "tuned"],
    ]
    assert box.plant.writes == 1


def test_a_healthy_row_ends_tuned_tuned_and_a_row_of_the_database_is_a_dictionary() -> None:
    """sonic-ocs (CODE/DOC)."""
    box = sonic(preset=[["1A", "16B"]])
    output, _ = box.once("show ocs cross-connect status")
    assert re.sub(" +", " ", output.splitlines()[-1]).endswith("tuned tuned")
    assert box.once("sonic-db-cli CONFIG_DB hgetall 'OCS_CROSS_CONNECT|1A-16B'") == (
        "{'a_side': '1A', 'b_side': '16B'}\n",
        0,
    )


def test_typed_at_a_shell_it_echoes_and_prompts() -> None:
    box = sonic()
    assert box.greeting == "admin@sonic:~$ "
    reported = box.send("show ocs cross-connect config", end="\n")
    assert reported == (
        "show ocs cross-connect config\n"
        "id    a_side    b_side\n"
        "----  --------  --------\n"
        "admin@sonic:~$ "
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["1b-1a", "1-1", "65A", "65A-66B", "1A+1B", "0A-1B", "1A-17B", "a1-1b", "", "1A-1B,1A-2B"],
)
def test_an_id_that_is_none_does_not_succeed(name: str) -> None:
    box = sonic()
    output, status = box.once(ADD.format(name or "''"))
    assert "succeeded" not in output
    assert re.search("Invalid|Error", output)
    assert status == 2
    assert rows(box, "config") == rows(box, "status") == []
    assert box.plant.writes == 0


def test_small_letters_lists_and_ranges_are_understood() -> None:
    box = sonic()
    assert "succeeded" in box.once(ADD.format("1a-2b,7A..9A-7B..9B"))[0]
    box.wait(2)
    assert box.light() == {("1A", "2B"), ("7A", "7B"), ("8A", "8B"), ("9A", "9B")}
    box.once(DELETE.format("7A..9A-7B..9B"))
    box.wait(2)
    assert box.light() == {("1A", "2B")}


def test_a_port_in_use_is_accepted_by_the_configuration_and_fails_in_the_hardware() -> None:
    box = sonic(preset=[["1A", "1B"]])
    assert "succeeded" in box.once(ADD.format("1A-2B"))[0]
    box.wait(60)
    assert rows(box, "status") == [
        ["1A-1B", "1A", "1B", "tuned", "tuned"],
        ["1A-2B", "1A", "2B", "failed", "failed"],
    ]
    assert box.light() == {("1A", "1B")}
    box.once(DELETE.format("1A-1B"))
    box.once(ADD.format("1A-2B"))
    box.wait(2)
    assert box.light() == {("1A", "2B")}
    assert rows(box, "status") == [["1A-2B", "1A", "2B", "tuned", "tuned"]]


def test_remove_then_create_in_one_breath_is_done_in_that_order() -> None:
    box = sonic(preset=[["1A", "1B"]])
    box.once(DELETE.format("1A-1B"))
    box.once(ADD.format("1A-2B"))
    box.wait(2)
    assert box.light() == {("1A", "2B")}
    assert not box.plant.violations


def test_safe_mode_names_what_is_in_the_way() -> None:
    box = sonic(preset=[["1A", "2B"]])
    assert "succeeded" in box.once("config ocs cross-connect add 1A-2B safe")[0]
    output, status = box.once("config ocs cross-connect add 1A-3B safe")
    assert "existing cross-connect 1A-2B" in output
    assert status == 2
    assert rows(box, "config") == [["1A-2B", "1A", "2B"]]


def test_a_stale_row_is_not_deleted_but_added_and_then_deleted() -> None:
    box = sonic(stale=["3A-4B"])
    assert rows(box, "config") == []
    assert rows(box, "status") == [["3A-4B", "3A", "4B", "tuned", "tuned"]]
    output, status = box.once(DELETE.format("3A-4B"))
    assert "succeeded" not in output
    assert status == 2
    box.once(ADD.format("3A-5B"))
    box.wait(5)
    assert ["3A-5B", "3A", "5B", "failed", "failed"] in rows(box, "status")
    for command in (DELETE.format("3A-5B"), ADD.format("3A-4B"), DELETE.format("3A-4B")):
        assert "succeeded" in box.once(command)[0]
    box.wait(5)
    assert rows(box, "status") == []
    assert box.light() == set()


def test_a_silent_failure_is_configured_and_never_tuned_or_stays_behind() -> None:
    box = sonic(preset=[["5A", "5B"]])
    box.dialect.inject(box.now, "silent-failure", on="write")
    assert "succeeded" in box.once(ADD.format("1A-1B"))[0]
    assert "succeeded" in box.once(DELETE.format("5A-5B"))[0]
    box.wait(60)
    assert rows(box, "config") == [["1A-1B", "1A", "1B"]]
    assert rows(box, "status") == [
        ["1A-1B", "1A", "1B", "failed", "failed"],
        ["5A-5B", "5A", "5B", "tuned", "tuned"],
    ]
    assert box.light() == {("5A", "5B")}


@pytest.mark.parametrize("kind", ["stuck-port", "failed-port", "port-locked"])
def test_hardware_that_fails_does_so_although_the_configuration_was_taken(kind: str) -> None:
    box = sonic()
    box.dialect.inject(box.now, kind, port="1B")
    assert "succeeded" in box.once(ADD.format("1A-1B"))[0]
    box.wait(60)
    assert rows(box, "status")[0][3:] == ["failed", "failed"]
    assert box.light() == set()


def test_a_port_forced_to_block_is_dark_and_says_so() -> None:
    box = sonic(preset=[["1A", "2B"]])
    assert box.once("config ocs-port 2B --config-status force-blocked") == ("", 0)
    box.wait(2)
    assert box.light() == set()
    assert rows(box, "status")[0][3:] == ["tuned", "blocked"]
    assert (
        literal_eval(box.once("sonic-db-cli CONFIG_DB hgetall 'OCS_PORT|2B'")[0])["config_status"]
        == "force-blocked"
    )
    assert box.once("sonic-db-cli CONFIG_DB hset 'OCS_PORT|2B' config_status normal")[1] == 0
    box.wait(2)
    assert box.light() == {("1A", "2B")}
    assert "Invalid" in box.once("config ocs-port 2B --config-status perhaps")[0]


def test_the_databases_are_read_by_key_and_pattern() -> None:
    box = sonic(size="2x2", preset=[["1A", "2B"]])
    assert (
        box.once("sonic-db-cli CONFIG_DB keys 'OCS_CROSS_CONNECT|*'")[0]
        == "OCS_CROSS_CONNECT|1A-2B\n"
    )
    assert box.once("sonic-db-cli STATE_DB keys 'OCS_PORT_TABLE|*'")[0].split() == [
        "OCS_PORT_TABLE|1A", "OCS_PORT_TABLE|2A", "OCS_PORT_TABLE|1B", "OCS_PORT_TABLE|2B",
    ]  # fmt: skip
    state = literal_eval(
        box.once("sonic-db-cli STATE_DB hgetall 'OCS_CROSS_CONNECT_TABLE|1A-2B'")[0]
    )
    assert state == {
        "a_side": "1A",
        "b_side": "2B",
        "a_side_status": "tuned",
        "b_side_status": "tuned",
        "status": "tuned",
    }
    port = literal_eval(box.once("sonic-db-cli STATE_DB hgetall 'OCS_PORT_TABLE|2B'")[0])
    assert (port["target_simplex_port_id"], port["oper_status"]) == ("1A", "tuned")
    losses = box.once("sonic-db-cli STATE_DB keys 'OCS_FACTORY_INSERTION_LOSS_TABLE|*'")[0].split()
    assert len(losses) == 4
    published = literal_eval(box.once(f"sonic-db-cli STATE_DB hgetall '{losses[1]}'")[0])
    assert abs(float(published["loss_dB"]) - box.plant.loss_db(("1A", "2B"))) < 0.01
    assert box.once("sonic-db-cli CONFIG_DB hgetall NOTHING")[0] == "{}\n"
    assert "Invalid" in box.once("sonic-db-cli NO_DB keys '*'")[0]


def test_a_json_patch_is_applied_whole_or_not_at_all() -> None:
    box = sonic(preset=[["5A", "5B"]])
    patch = [
        {"op": "remove", "path": "/OCS_CROSS_CONNECT/5A-5B"},
        {"op": "add", "path": "/OCS_CROSS_CONNECT/1A-2B/a_side", "value": "1A"},
        {"op": "add", "path": "/OCS_CROSS_CONNECT/1A-2B/b_side", "value": "2B"},
        {
            "op": "add",
            "path": "/OCS_CROSS_CONNECT/2A-1B",
            "value": {"a_side": "2A", "b_side": "1B"},
        },
    ]
    box.once(
        f"echo '{json.dumps([*patch, {'op': 'remove', 'path': '/OCS_CROSS_CONNECT/9A-9B'}])}' > /tmp/bad.json"
    )
    output, status = box.once("sudo config apply-patch /tmp/bad.json")
    assert "9A-9B" in output
    assert status == 2
    assert rows(box, "config") == [["5A-5B", "5A", "5B"]]
    box.once(f"echo '{json.dumps(patch)}' > /tmp/good.json")
    assert box.once("config apply-patch /tmp/good.json") == ("Patch applied successfully.\n", 0)
    box.wait(2)
    assert box.light() == {("1A", "2B"), ("2A", "1B")}
    assert box.once("config apply-patch /tmp/none.json")[1] == 2


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "[1]",
        '[{"op":"move","path":"/x"}]',
        '[{"op":"add","path":"/OCS_CROSS_CONNECT/1A-2B/a_side","value":"1A"}]',
    ],
)
def test_a_patch_that_is_none_changes_nothing(text: str) -> None:
    box = sonic()
    box.once(f"echo '{text}' > p")
    assert box.once("config apply-patch p")[1] == 2
    assert rows(box, "config") == []


def test_a_reboot_applies_the_configuration_anew() -> None:
    box = sonic(preset=[["1A", "2B"]], stale=["3A-3B"], boot_s=5.0)
    box.dialect.inject(box.now, "reboot-keep")
    assert box.light() == set()
    box.wait(7)
    assert box.light() == {("1A", "2B")}
    assert rows(box, "status") == [["1A-2B", "1A", "2B", "tuned", "tuned"]]
    box.dialect.inject(box.now, "reboot-lose")
    box.wait(7)
    assert rows(box, "config") == rows(box, "status") == []


def test_a_wrong_command_fails_as_a_shell_does() -> None:
    box = sonic()
    assert "command not found" in box.once("frobnicate")[0]
    assert "No such command" in box.once("show ocs nothing")[0]
    assert box.once("show 'unended")[1] == 2
    assert "SONiC Software Version" in box.once("show version")[0]


def test_what_counts_as_a_write() -> None:
    writes = sonic().dialect.writes
    for text in (
        ADD,
        DELETE,
        "sudo config ocs-port 1A --config-status normal",
        "sonic-db-cli CONFIG_DB hset x a b",
    ):
        assert writes.search(text)
    for text in (
        "show ocs cross-connect config",
        "sonic-db-cli CONFIG_DB hgetall 'OCS_CROSS_CONNECT|1A-16B'",
        "show version",
    ):
        assert not writes.search(text)


ID = st.sampled_from(["1A-1B", "1A-2B", "2A-1B", "2A-2B", "3A-3B", "1A..2A-1B..2B", "9A-9B", "x"])
COMMAND = st.one_of(
    st.builds(
        "{} {}\n".format,
        st.sampled_from(["config ocs cross-connect add", "config ocs cross-connect delete"]),
        ID,
    ),
    st.builds(
        "sonic-db-cli CONFIG_DB {} 'OCS_CROSS_CONNECT|{}' a_side 1A\n".format,
        st.sampled_from(["hset", "hgetall"]),
        ID,
    ),
    st.just("show ocs cross-connect status\n"),
)


@given(texts=st.lists(st.one_of(st.binary(max_size=40), COMMAND.map(str.encode)), max_size=15))
@settings(deadline=None)
def test_no_bytes_upset_it_and_what_is_tuned_is_the_glass(texts: list[bytes]) -> None:
    box = sonic(size="3x3", apply_s=0.5, settle_s=0.2)
    for text in texts:
        if box.session.closed:
            box.session = box.open()
        box.dialect.receive(box.session, text, box.now)
        box.wait(0.3)
    box.wait(5)
    tuned = {(row[1], row[2]) for row in rows(box, "status") if row[3:] == ["tuned", "tuned"]}
    assert tuned == set(box.plant.light(box.now)) == box.light()


# ---- what the virtual switch prints, and the generated commands


def test_it_says_what_it_is_as_the_virtual_switch_does_byte_by_byte() -> None:
    box = sonic(serial="123456789", firmware="ocs-dev.0-4e2af959f")
    summary = (
        "Platform: x86_64-ocs-kvm_x86_64-r0\nHwSKU: OCS-V\nASIC: ocs-kvm\nASIC Count: 1\n"
        "Serial Number: 123456789\nModel Number: OCS-KVM\nHardware Revision: 1.0\n"
    )
    assert box.once("show platform summary") == (summary, 0)
    output = re.sub(r"(Built by|Uptime): .*", r"\1: <any>", box.once("show version")[0])
    assert output == (
        "\nSONiC Software Version: SONiC.ocs-dev.0-4e2af959f\nSONiC OS Version: 13\nDistribution: Debian 13.6\n"
        "Kernel: 6.12.41+deb13-sonic-amd64\nBuild commit: 4e2af959f\nBuild date: Mon Jul 20 23:16:58 UTC 2026\n"
        f"Built by: <any>\n\n{summary}Uptime: <any>\n"
    )
    (first, *_) = box.once("show platform firmware status")[0].splitlines()[2:]
    assert re.split(r" {2,}", first) == [
        "OCS",
        "LINE-CARD0",
        "OCS0-0",
        "1",
        "Optical Circuit Switch of 16x16",
    ]
    ports = box.once("sonic-db-cli CONFIG_DB hgetall 'OCS_PORT|1A'")[0]
    assert ports == "{'config_status': 'normal', 'label': ''}\n"


def test_generated_commands_are_another_family_and_a_version_knows_one() -> None:
    box = sonic(verbs="generated", apply_s=0.0, settle_s=0.0)
    assert box.once("config ocs-cross-connect add 1A-2B 1A 2B")[1] == 0
    box.wait(1)
    assert box.light() == {("1A", "2B")}
    assert box.once("show ocs-cross-connect")[0].splitlines()[2].split() == ["1A-2B", "1A", "2B"]
    assert box.once("show ocs-cross-connect-table")[0].splitlines()[2].split()[3:] == [
        "tuned",
        "tuned",
    ]
    assert (
        len(box.once("show ocs-port")[0].splitlines())
        == len(box.once("show ocs-port-table")[0].splitlines())
        == 2 + 32
    )
    assert box.once("config ocs-port 1A --config-status powered-off") == ("", 0)
    box.wait(1)
    assert box.light() == set()
    assert box.once("config ocs-cross-connect delete 1A-2B")[1] == 0
    for foreign in (
        "show ocs cross-connect config",
        "config ocs cross-connect add 1A-2B",
        "config ocs-cross-connect add 1A-2B 1A 3B",
    ):
        assert "No such command" in box.once(foreign)[0]
    other = sonic()
    for foreign in (
        "show ocs-port",
        "config ocs-cross-connect add 1A-2B 1A 2B",
        "config ocs-port 1A --config-status powered-off",
    ):
        assert other.once(foreign)[1] == 2
    with pytest.raises(ValueError, match="none of ocs, generated"):
        sonic(verbs="both")
