"""ROME: what it prints and when, and where the fibres are meanwhile."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulators.devices.families import device_from_config
from tests.emulators.devices.bench import Bench

EPOCH = {"epoch_s": 1564996800.0 - 1000.0}  # 08-05-2019 09:20 at second 1000
LOG = re.compile(r"\d\d-\d\d-\d{4} \d\d:\d\d ")


def rome(**overrides: object) -> Bench:
    return Bench("rome-cli", **({"torn": 0.0, "settle_s": 60.0} | EPOCH | overrides))  # type: ignore[arg-type]


def test_a_connect_is_accepted_at_once_and_logged_behind_the_prompt_when_it_is_done() -> None:
    """rome-accept-complete (REAL)."""
    box = rome(settle_s=10.0)
    assert box.greeting.endswith("ROME[TECH]# ")
    output = "ROME[TECH]# " + box.send("connection create E3 to W4") + box.wait(30)
    assert output.splitlines() == [
        "ROME[TECH]# connection create E3 to W4",
        "OK - request added to pending queue (E3-W4)",
        "ROME[TECH]# 08-05-2019 09:20 CONNECTING...",
        "08-05-2019 09:20 CONNECTION OPERATION SUCCEEDED:E3[1AE3]<->W4[1AW4] OP:connect",
    ]
    assert box.plant.writes == 1


def test_the_pending_queue_names_the_homing_run_while_a_command_is_in_process() -> None:
    """rome-pending (REAL)."""
    box = rome()
    empty = box.send("connection show pending")
    assert "Connection execution status: enabled\n\nno request in process\n" in empty
    box.send("connection create E3 to W4")
    assert box.send("connection show pending").split("\n\n====")[0] == (
        "connection show pending\n"
        "Connection execution status: delayed due to command in process\n"
        '                             Perform "homing run"\n'
        "\n"
        "Command in process:\n"
        "connect, ports: E3-W4, status: in process with payload"
    )
    box.send("connection create A1 to A2")
    row = "773     A1        A2        connect            CLI     admin"
    head = "Request Port1     Port2     Command            Source  User"
    assert [
        line
        for line in box.send("connection show pending").splitlines()
        if line.startswith((head, "773"))
    ] == [head, row]


def test_a_port_whose_label_is_wrong_is_shown_and_logged_so() -> None:
    box = rome(brackets={"E4": "1AE2"}, settle_s=1.0)
    box.send("connection create E4 to W3")
    assert "CONNECTION OPERATION SUCCEEDED:E4[1AE2]<->W3[1AW3] OP:connect" in box.wait(10)
    assert "\nE4[1AE2] " in box.send("port show E4")
    with pytest.raises(ValueError, match="brackets: no port E99"):
        rome(brackets={"E99": "x"})


def test_the_half_that_is_there_is_skipped() -> None:
    """rome-already-done (REAL)."""
    box = rome(preset=[["E1", "W2"]], settle_s=5.0)
    box.send("connection create A1 to A2")
    assert [LOG.sub("", line) for line in box.wait(10).splitlines() if line] == [
        "CONNECTION OPERATION SUCCEEDED:E2[1AE2]<->W1[1AW1] OP:connect",
        "Connection A1<->A2 completed successfully",
    ]
    box = rome(preset=[["E1", "W2"]], settle_s=5.0)
    output = box.send("connection create A1 to A2")
    assert "SKIPPED(already done):E1[1AE1]<->W2[1AW2] OP:connect" in output


def test_light_goes_at_the_start_of_a_move_and_comes_at_its_end() -> None:
    box = rome(preset=[["E1", "W1"]])
    box.send("connection disconnect E1 from W1")
    assert box.light() == set()
    box.send("connection create E1 to W2")
    box.wait(119.9)
    assert box.light() == set()
    output = box.wait(0.2)
    assert box.light() == {("E1", "W2")}
    assert "SUCCEEDED:E1[1AE1]<->W2[1AW2] OP:connect" in output
    assert [event.what for event in box.plant.history] == ["broken", "making", "lit"]


def test_jobs_are_done_in_order_one_move_at_a_time() -> None:
    box = rome()
    for n in range(1, 5):
        box.send(f"connection create E{n} to W{n}")
    lit = []
    for _ in range(4):
        box.wait(60.1)
        lit.append(len(box.light()))
    assert lit == [1, 2, 3, 4]
    made = [event.at_s for event in box.plant.history if event.what == "lit"]
    assert made == [1060.0, 1120.0, 1180.0, 1240.0]


def test_a_logical_connection_takes_two_moves_and_says_so_at_its_end() -> None:
    box = rome()
    box.send("connection create A11 to A12")
    assert "completed" not in box.wait(119)
    reported = box.wait(2)
    assert reported.index("SUCCEEDED:E12[1AE12]<->W11[1AW11]") < reported.index(
        "Connection A11<->A12 completed successfully"
    )
    assert box.light() == {("E11", "W12"), ("E12", "W11")}


def test_time_passes_faster_by_the_scale() -> None:
    box = rome(time_scale=60.0)
    box.send("connection create E1 to W1")
    box.wait(0.9)
    assert box.light() == set()
    box.wait(0.2)
    assert box.light() == {("E1", "W1")}
    box = rome(time_scale=10.0, move_s=30.0)
    box.send("connection create E1 to W1")
    box.wait(3.01)
    assert box.light() == {("E1", "W1")}


def test_a_request_for_a_port_in_use_fails_its_validation_without_the_word_error() -> None:
    box = rome(preset=[["E5", "W4"]])
    writes = box.plant.writes
    assert box.send("connection create E6 to W4").splitlines()[1:-1] == [
        "08-05-2019 09:20 ",
        "Ports details:",
        "[E6[1AE6]] [W4[1AW4]]",
        "08-05-2019 09:20 OPERATION VALIDATION FAILED:E6-W4 requestType=connect",
        "",
    ]
    box.send("connection create E9 to W9")
    output = box.send("connection create E7 to W4")
    assert "OK - request added" in output
    output = box.wait(61)
    assert "OPERATION VALIDATION FAILED:E7-W4 requestType=connect" in output
    assert "rror" not in output
    assert "ERROR" not in output
    assert box.plant.writes == writes + 2
    assert not box.plant.violations


def test_a_locked_port_fails_its_validation() -> None:
    box = rome()
    box.dialect.inject(box.now, "port-locked", port="E3")
    assert "VALIDATION FAILED:E3-W3" in box.send("connection create E3 to W3")
    assert re.search(r"^E3\[1AE3\] +Locked ", box.send("port show E3"), re.M)


def test_half_of_a_duplex_fails_and_the_other_half_stays() -> None:
    box = rome()
    box.dialect.inject(box.now, "half-duplex", count=1)
    box.send("connection create A1 to A2")
    output = box.wait(130)
    assert "CONNECTION OPERATION SUCCEEDED:E1[1AE1]<->W2[1AW2] OP:connect" in output
    assert "CONNECTION OPERATION FAILED:E2[1AE2]<->W1[1AW1] OP:connect" in output
    assert "completed" not in output
    assert box.light() == {("E1", "W2")}
    box.send("connection disconnect A1 from A2")
    output = box.wait(130)
    assert output.count("CONNECTION OPERATION") == 1
    assert box.light() == set()


def test_a_silent_failure_is_logged_as_done() -> None:
    box = rome()
    box.dialect.inject(box.now, "silent-failure", count=1)
    box.send("connection create E1 to W1")
    assert "SUCCEEDED:E1[1AE1]<->W1[1AW1]" in box.wait(61)
    assert box.light() == set()


@pytest.mark.parametrize("kind", ["stuck-port", "failed-port"])
def test_a_port_that_does_not_take_the_fibre_fails_after_the_move(kind: str) -> None:
    box = rome()
    box.dialect.inject(box.now, kind, port="W1")
    box.send("connection create E1 to W1")
    assert "FAILED:E1[1AE1]<->W1[1AW1] OP:connect" in box.wait(61)


def test_a_stalled_robot_does_nothing_until_it_is_homed_and_enabled() -> None:
    box = rome(preset=[["E9", "W9"]])
    box.dialect.inject(box.now, "robot-stalled", count=1)
    assert "Multiple Cross Connect Severe Failure" in box.send("connection create E1 to W1")
    box.send("connection create E2 to W2")
    box.wait(3600)
    pending = box.send("connection show pending")
    assert 'Perform "homing run"' in pending
    assert "E1-W1, status: in process" in pending
    assert box.light() == {("E9", "W9")}
    assert "ERROR" in box.send("connection set command-execution enable")
    box.send("homing run")
    output = box.wait(121)
    assert "RECOVERY FINISHED SUCCESSFULLY" in output
    assert "FAILED:E1[1AE1]<->W1[1AW1] OP:connect" in output
    box.wait(600)
    assert box.light() == {("E9", "W9")}
    assert "connection execution is enabled" in box.send("connection set command-execution enable")
    box.wait(61)
    assert box.light() == {("E9", "W9"), ("E2", "W2")}


def test_fibres_stay_through_a_power_cut_and_one_in_the_gripper_needs_homing() -> None:
    box = rome(preset=[["E9", "W9"], ["E8", "W8"]])
    stamp = box.plant.since(("E9", "W9"))
    box.send("connection create E1 to W1")
    box.send("connection disconnect E8 from W8")
    box.wait(30)
    box.dialect.inject(box.now, "reboot-keep")
    assert box.light() == {("E9", "W9"), ("E8", "W8")}
    assert box.plant.since(("E9", "W9")) == stamp
    box.wait(2)
    box.session = box.open()
    assert 'Perform "homing run"' in box.send("connection show pending")
    box.send("connection create E2 to W2")
    box.wait(600)
    assert box.light() == {("E9", "W9"), ("E8", "W8")}


def test_an_idle_robot_needs_no_homing_after_a_power_cut() -> None:
    box = rome()
    box.dialect.inject(box.now, "reboot-keep")
    box.wait(2)
    box.session = box.open()
    box.send("connection create E2 to W2")
    box.wait(61)
    assert box.light() == {("E2", "W2")}


def test_the_port_table_has_its_widths() -> None:
    box = rome(preset=[["E1", "W2"]])
    lines = box.send("port show").splitlines()[1:-1]
    assert (
        lines[0]
        == lines[2]
        == "================ ============ =========== ============= ======= ============== ========"
    )
    assert (
        lines[1]
        == "Port             Admin Status Oper Status Port Status   Counter ConnectedTo    Logical"
    )
    assert (
        lines[3]
        == "E1[1AE1]         Unlocked     Enabled     Connected     0       W2[1AW2]       A1      "
    )
    assert (
        lines[4]
        == "E2[1AE2]         Unlocked     Enabled     Disconnected  0                      A2      "
    )
    assert {len(line) for line in lines[3:]} == {17 + 13 + 12 + 14 + 8 + 15 + 8}
    assert len(lines) == 3 + 32
    assert box.send("port show e2").splitlines()[4:-1] == [lines[4]]
    assert "ERROR" in box.send("port show E99")


def rows(box: Bench) -> dict[str, str]:
    """Return the rows of the port table by their first column, counters as in the captures they are
    compared with.
    """
    counts = {"E12": 17, "E161": 5, "E165": 7, "W150": 2, "E1": 123, "W1": 111, "E6": 18}
    box.dialect.counter |= {
        port: count for port, count in counts.items() if port in box.dialect.counter
    }  # type: ignore[attr-defined]
    return {line.split()[0]: line for line in box.send("port show").splitlines()[4:-1]}


def test_a_chassis_of_two_matrices_prints_bare_labels_and_two_names_byte_by_byte() -> None:
    box = rome(size="256x256", bare=True, logical="A,Q", preset=[["E12", "W60"], ["E161", "W237"]])
    box.dialect.inject(box.now, "port-locked", port="W150", user="bench2")
    shown = rows(box)
    assert [shown[label] for label in ("1AE12", "1BE33", "1BE37", "1BW22")] == [
        "1AE12            Unlocked     Enabled     Connected     17      W60[1AW60]     E12,A12 ",
        "1BE33            Unlocked     Enabled     Connected     5       W237[1BW109]   E161,Q9 ",
        "1BE37            Unlocked     Enabled     Disconnected  7                      E165,Q10",
        "1BW22            Locked       Enabled     Disconnected  2                      W150,Q6 ",
    ]


def test_the_columns_of_one_matrix_are_one_blank_further_to_the_right_byte_by_byte() -> None:
    shown = rows(rome(bare=True, logical="Q", further=1))
    assert (
        shown["1AE12"]
        == "1AE12            Unlocked     Enabled     Disconnected   17                     E12,Q3 "
    )
    with pytest.raises(ValueError, match="further: wanted 0 to 4, seen 5"):
        rome(further=5)


def test_a_port_without_a_name_shows_no_peer_and_its_peer_shows_it_byte_by_byte() -> None:
    box = rome(logical="P", preset=[["E1", "W2"], ["E2", "W1"]])
    box.dialect.inject(box.now, "port-locked", port="E6", user="bench2")
    shown = rows(box)
    assert (
        shown["W1[1AW1]"]
        == "W1[1AW1]         Unlocked     Enabled     Connected     111     E2[1AE2]       P1      "
    )
    assert (
        shown["E6[1AE6]"]
        == "E6[1AE6]         Locked       Enabled     Disconnected  18                     P6      "
    )
    shown = rows(rome(logical="P", nameless=["E1", "E16"], preset=[["E1", "W2"]]))
    assert shown["1AE1"].rstrip() == "1AE1             Unlocked     Enabled     Connected     123"
    assert (
        shown["1AE16"]
        == "1AE16            Unlocked     Enabled     Disconnected  0                              "
    )
    assert " E1[1AE1] " in shown["W2[1AW2]"]
    with pytest.raises(ValueError, match="nameless: no port E99"):
        rome(nameless=["E99"])


def test_a_q_port_is_four_of_either_side() -> None:
    box = rome(logical="Q", settle_s=1.0)
    output = box.send("connection create Q1 to Q2") + box.wait(60)
    assert (
        output.count("CONNECTION OPERATION SUCCEEDED") == 8
        and "Connection Q1<->Q2 completed successfully" in output
    )
    assert box.light() == {(f"E{n}", f"W{n + 4}") for n in range(1, 5)} | {
        (f"E{n + 4}", f"W{n}") for n in range(1, 5)
    }
    assert "not of the same size" in rome(size="24x24", logical="A,Q", matrix_ports=16).send(
        "connection create A1 to Q1"
    )


def test_a_fibre_on_its_way_is_connected_to_nothing() -> None:
    box = rome()
    box.send("connection create E1 to W1")
    assert " Connected " not in box.send("port show")
    box.wait(61)
    assert box.send("port show").count(" Connected ") == 2


def test_the_board_counts_operations() -> None:
    box = rome()
    before = box.send("show board")
    for line in (
        "ROME TYPE        ROME500",
        "Matrix A: Male/West 1..16, Female/East 1..16",
        "ACTIVE SW VER    1.10.2.10",
    ):
        assert line in before
    assert "CONNECTIONS      connection execution is enabled" in before
    assert "OPERATION COUNT  7766" in before
    box.send("connection create A1 to A2")
    box.wait(121)
    assert "OPERATION COUNT  7768" in box.send("show board")


def test_ports_of_two_matrices_are_not_joined() -> None:
    box = rome(matrix_ports=8, logical="")
    assert "Ports are not of the same matrix" in box.send("connection create E1 to W9")
    assert "E9[1BE1]" in box.send("port show B9")
    assert box.plant.writes == 0


@pytest.mark.parametrize(
    "wrong",
    [
        "connection create E1 to E2",
        "connection create A1 to A1",
        "connection create A1 to W2",
        "xyz",
    ],
)
def test_a_senseless_request_is_refused_at_once(wrong: str) -> None:
    box = rome()
    assert "rror" in box.send(wrong).lower()
    assert box.plant.writes == 0


def test_words_may_be_cut_short() -> None:
    box = rome()
    assert "OK - request added to pending queue (E11-W3)" in box.send("conn cr e11 to w3")
    assert box.dialect.writes.search("conn cr e11 to w3")
    assert not box.dialect.writes.search("connection show pending")


def test_telnet_asks_for_name_and_password() -> None:
    box = rome(transport="telnet", username="SuperUser", password="superuser")
    assert box.greeting == "\nLogin:"
    assert box.send("FiberZone") == "FiberZone\nPassword:"
    assert box.send("nothing") == "\nusername or password invalid\n\nLogin:"
    box.send("SuperUser", end="\r\n")
    output = box.send("superuser", end="\r\n")
    assert "superuser" not in output
    assert output.endswith("\n\nROME[TECH]# ")
    assert "773" not in box.send("connection create E1 to W1")


def test_characters_are_echoed_as_they_come_and_rubbed_out() -> None:
    box = rome()
    assert box.send("show bx", end="") == "show bx"
    assert box.send("\x7foard", end="") == "\b \board"
    assert "ROME TYPE" in box.send("", end="\r\n")


def test_log_lines_go_to_every_shell_and_to_no_single_command() -> None:
    box = rome()
    other = box.open()
    box.text(other)
    reported, status = box.once("connection create E1 to W1")
    assert (reported, status) == ("OK - request added to pending queue (E1-W1)\n", 0)
    box.wait(61)
    assert "SUCCEEDED" in box.text(other)


def test_a_log_line_cuts_what_is_being_typed() -> None:
    box = rome()
    box.send("connection create E1 to W1")
    box.send("port sh", end="")
    assert re.fullmatch(
        r"\n\S+ \S+ CONNECTION OPERATION SUCCEEDED:\S+ OP:connect\n\n", box.wait(61)
    )


def untear(text: str) -> str:
    """Take log lines out, as a reader who knows the text around them would."""
    text = re.sub(rf"\n{LOG.pattern}[^\n]*\n\n", "", text)
    return re.sub(rf"^{LOG.pattern}[^\n]*\n", "", text, flags=re.M)


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_table_joins_to_what_it_was(seed: int) -> None:
    box = rome(torn=1.0, torn_hold_s=1000.0, seed=seed)
    whole = box.send("port show")
    box.dialect.inject(box.now, "silent-failure")
    box.send("connection create A1 to A2")
    assert "OPERATION" not in box.wait(121)
    torn = box.send("port show")
    assert torn.count("CONNECTION OPERATION SUCCEEDED") == 2
    assert "completed successfully" in torn
    assert torn.endswith("\nROME[TECH]# ") or LOG.search(torn.rsplit("\n", 1)[0].rsplit("\n", 1)[1])
    rows = re.findall(r"^[EW]\d.{85}$", untear(torn), re.M)
    assert len(rows) == 32
    assert [row[:17] for row in rows] == [
        row[:17] for row in re.findall(r"^[EW]\d.{85}$", whole, re.M)
    ]


def test_a_kept_log_line_comes_by_itself_in_the_end() -> None:
    box = rome(torn=1.0, torn_hold_s=5.0)
    box.send("connection create E1 to W1")
    assert "SUCCEEDED" not in box.wait(64)
    assert "SUCCEEDED" in box.wait(2)


def test_an_unknown_value_is_refused() -> None:
    with pytest.raises(ValueError, match="torn"):
        rome(torn=2.0)
    with pytest.raises(ValueError, match="matrix_ports"):
        rome(matrix_ports=0)
    with pytest.raises(ValueError, match="preset"):
        rome(preset=["E1"])


PORT = st.sampled_from(["E1", "E2", "W1", "W2", "A1", "A2", "A3", "w3", "E99", ""])
COMMAND = st.one_of(
    st.builds("connection create {} to {}\r".format, PORT, PORT),
    st.builds("connection disconnect {} from {}\r".format, PORT, PORT),
    st.sampled_from(
        [
            "port show\r",
            "homing run\r",
            "conn set comm enable\r",
            "conn set c disable\r",
            "connection show pending\r",
        ]
    ),
)


@given(
    texts=st.lists(st.one_of(st.binary(max_size=40), COMMAND.map(str.encode)), max_size=12),
    faults=st.booleans(),
)
@settings(deadline=None)
def test_no_bytes_upset_it_and_its_table_is_the_glass(texts: list[bytes], faults: bool) -> None:
    box = rome(size="3x3", settle_s=1.0, torn=0.5)
    if faults:
        box.dialect.inject(box.now, "half-duplex", probability=0.5)
        box.dialect.inject(box.now, "robot-stalled", probability=0.2)
    for text in texts:
        if box.session.closed:
            box.session = box.open()
        box.dialect.receive(box.session, text, box.now)
        box.wait(0.6)
    if box.session.closed:
        box.session = box.open()
    box.send("")
    box.wait(30)
    shown = set(
        re.findall(r"^(E\d)\[.*Connected +\d+ +(W\d)\[", untear(box.send("port show")), re.M)
    )
    assert shown == set(box.plant.light(box.now))
    assert not box.plant.violations


def test_the_keys_of_the_emulator_file_reach_it() -> None:
    plant, dialect = device_from_config(
        "r1", "rome-cli", {"size": "12x8", "firmware": "9.9"}, 1, time_scale=60.0
    )
    assert (plant.ingress[-1], plant.egress[-1], plant.settle_s) == ("E12", "W8", 1.0)
    assert dialect.firmware == "9.9"
