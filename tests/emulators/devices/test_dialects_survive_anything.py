"""Whatever bytes arrive, a dialect answers or keeps silent; it never breaks and its tables agree
with its glass.
"""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from emulators.devices.dialects.calient_tl1 import CalientTl1
from emulators.devices.families import device_from_config

AID = st.sampled_from(["1.1.1", "1.1.2", "1.1.3", "9.9.9", ""])
NAME = st.sampled_from(["1.1.1-1.1.2", "1.1.1>1.1.2", "1.1.2-1.1.3", "SYSTEM", "up", ""])
VERB = st.sampled_from(
    ["ENT-CRS", "ACT-CRS", "CANC-CRS", "DLT-CRS", "DLT-CRS-ALL", "RTRV-CRS", "rtrv-port-sum"]
)
TL1 = st.one_of(
    st.builds(
        "{}::{},{}:1::{},{},{};".format,
        VERB,
        AID,
        AID,
        NAME,
        st.sampled_from(["1WAY", "2way", "SYSTEM", ""]),
        NAME,
    ),
    st.builds("{}::{},{}:1::{};".format, VERB, AID, AID, NAME),
)
PORTS = st.lists(st.integers(0, 6), max_size=3).map(lambda ports: f"(@{','.join(map(str, ports))})")
HEADER = st.sampled_from(
    [
        ":oxc:swit:conn:add",
        "oxc:switch:conn:only",
        ":oxc:swit:conn:sub",
        ":oxc:swit:port:dis",
        ":pmon:pow?",
    ]
)
SCPI = st.builds("{} {},{};:syst:err?\n".format, HEADER, PORTS, PORTS)


def answers(driver: str, texts: list[bytes]) -> tuple[Any, list[bytes]]:
    dialect = device_from_config(
        "ocs1", driver, {"row_delay_s": 0.0} if driver == "calient-tl1" else {"size": "3x3"}
    )[1]
    session = dialect.open(0.0)
    assert session is not None
    session.user = "admin"
    for step, text in enumerate(texts):
        dialect.receive(session, text, 1.0 + step * 0.02)
        dialect.tick(1.0 + step * 0.02)
    return dialect, [data for _, _, data in dialect.drain() if data]


@given(texts=st.lists(st.one_of(st.binary(max_size=40), TL1.map(str.encode)), max_size=8))
def test_no_bytes_upset_the_tl1_dialect(texts: list[bytes]) -> None:
    _, replies = answers("calient-tl1", texts)
    assert all(reply.endswith(b";") for reply in replies)


NEARLY = st.builds(
    lambda header, rest: f"{header} ".encode() + rest + b"\n:syst:err:all?\n",
    HEADER,
    st.binary(max_size=12),
)


@given(texts=st.lists(st.one_of(st.binary(max_size=40), NEARLY, SCPI.map(str.encode)), max_size=8))
def test_no_bytes_upset_the_scpi_dialect(texts: list[bytes]) -> None:
    _, replies = answers("polatis-scpi", [*texts, b"\n:syst:err:all?\n"])
    assert replies
    assert all(reply.endswith(b"\n") and reply.count(b"\n") == 1 for reply in replies)


@given(commands=st.lists(TL1, max_size=30))
@settings(deadline=None)
def test_the_connection_table_and_the_glass_agree(commands: list[str]) -> None:
    dialect, replies = answers("calient-tl1", [command.encode() for command in commands])
    assert isinstance(dialect, CalientTl1)
    assert sum(b"\r\nM  1 " in reply for reply in replies) == len(commands)
    active = [
        pair for connection in dialect.table if connection.active for pair in connection.pairs
    ]
    assert sorted(active) == sorted(dialect.plant.pairs())
    held = [side for connection in dialect.table for side in connection.sides]
    assert len(held) == len(set(held))


@given(commands=st.lists(SCPI, max_size=30))
@settings(deadline=None)
def test_every_scpi_message_is_answered_by_its_error_and_the_map_is_the_glass(
    commands: list[str],
) -> None:
    dialect, replies = answers(
        "polatis-scpi", [*(c.encode() for c in commands), b":oxc:swit:conn:stat?\n"]
    )
    assert len(replies) == len(commands) + 1
    pairs = sorted(dialect.plant.light(1.0 + len(commands) * 0.02), key=lambda pair: int(pair[0]))
    assert (
        replies[-1].decode()
        == f"(@{','.join(i for i, _ in pairs)}),(@{','.join(e for _, e in pairs)})\r\n"
    )


LABEL = st.sampled_from(
    [
        "1",
        "3",
        "17",
        "10001",
        "20001&20002",
        "1&&4",
        "10001&&10003",
        "ALL",
        "all",
        "9&&1",
        "&",
        "1&&999999",
        "",
    ]
)
TEXTS = st.sampled_from(
    [
        "ENT-PATCH",
        "DLT-PATCH",
        "RTRV-PATCH",
        "RTRV-PORT-POWER",
        "OPR-PORT-SHUTTER",
        "SET-PORT-ATTEN",
        "ENT-PORT-FLAP",
        "OPR-PORT-FLAP",
        "ed-eqpt",
        "ent-crs-fiber",
        "dlt-crs-fiber",
        "rtrv-crs-fiber",
        "RTRV-CFG-FIBER",
        "rtrv-port-power",
        "act-user",
        "RTRV-EQPT",
        "set-port-pmon",
    ]
)
TAIL = st.sampled_from(
    [
        "",
        "::",
        "::1000,500,1",
        ":::MODE=ABSOLUTE,LEVEL=-5",
        ":::LEVEL=inf",
        ':::LABEL="a;b',
        ":::ADMIN=9e99",
    ]
)
LISTS = st.builds("{}::{},{}:1{};".format, TEXTS, LABEL, LABEL, TAIL) | st.builds(
    "{}::{}:1{};".format, TEXTS, LABEL, TAIL
)


@given(
    texts=st.lists(st.one_of(st.binary(max_size=40), LISTS.map(str.encode)), max_size=8),
    driver=st.sampled_from([0, 1]),
)
@settings(deadline=None)
def test_no_bytes_upset_the_other_tl1_dialects(texts: list[bytes], driver: int) -> None:
    dialect, replies = answers(("polatis-tl1", "glimmerglass-tl1")[driver], texts)
    assert all(reply.rstrip(b"\r\n<").endswith(b";") for reply in replies[driver:])
    assert len(dialect.plant.pairs()) <= 3


CHANNEL = st.builds(
    "{} {} {}\n".format,
    st.sampled_from(["X1 CH", "x1 W", "RESET", "WEN", "X1", ":"]),
    st.integers(-1, 5),
    st.integers(-1, 5),
)


@given(texts=st.lists(st.one_of(st.binary(max_size=40), CHANNEL.map(str.encode)), max_size=8))
def test_no_bytes_upset_the_matrix_of_channels(texts: list[bytes]) -> None:
    dialect, replies = answers("dicon-scpi", [*texts, b"\nSYST:ERR?\n"])
    assert replies and all(reply.endswith(b"\n") and reply.count(b"\n") == 1 for reply in replies)
    assert all(egress != "0" for _, egress in dialect.plant.pairs())
