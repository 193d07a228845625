"""Settings: the nearest word wins, and a wrong word is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from optics import BadFile, Usage
from orchestrator.settings import Bounds, InfluxSettings, Settings, duration, load


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


def user_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "config" / "testbed").mkdir(parents=True, exist_ok=True)
    (tmp_path / "config" / "testbed" / "config.toml").write_text(text)


def get(
    tmp_path: Path, flags: dict[str, str | None] | None = None, env: dict[str, str] | None = None
) -> Settings:
    return load(flags, env=env or {}, cwd=tmp_path)


def test_flag_beats_environment_beats_project_beats_user_beats_default(tmp_path: Path) -> None:
    seen = [get(tmp_path)]
    user_file(tmp_path, 'timeout = "10s"')
    seen.append(get(tmp_path))
    (tmp_path / "testbed.toml").write_text("timeout = 20")
    seen.append(get(tmp_path))
    env = {"TESTBED_TIMEOUT": "30s"}
    seen.append(get(tmp_path, env=env))
    seen.append(get(tmp_path, {"timeout": "40s", "inventory": None}, env))
    assert [s.timeout_s for s in seen] == [300.0, 10.0, 20.0, 30.0, 40.0]
    user, project = str(tmp_path / "config/testbed/config.toml"), str(tmp_path / "testbed.toml")
    assert [s.origins["timeout"] for s in seen] == ["default", user, project, "environment", "flag"]


def test_the_owner_is_oneself_unless_somebody_else_is_named(tmp_path: Path) -> None:
    own = get(tmp_path)
    assert own.owner == own.user
    (tmp_path / "testbed.toml").write_text('owner = "project-x"')
    assert get(tmp_path).owner == "project-x"
    assert get(tmp_path, {"owner": "ann"}, {"TESTBED_OWNER": "bob"}).owner == "ann"
    with pytest.raises(Usage, match="TESTBED_OWNER: 'a/b' is no name"):
        get(tmp_path, env={"TESTBED_OWNER": "a/b"})


def test_directories_follow_xdg_and_can_be_moved(tmp_path: Path) -> None:
    settings = get(tmp_path)
    assert settings.store_path == tmp_path / "data/testbed/testbed.sqlite3"
    assert settings.run_dir("2026-11-21-0001") == tmp_path / "state/testbed/runs/2026-11-21-0001"
    moved = get(
        tmp_path,
        env={"TESTBED_DATA_DIR": str(tmp_path / "d"), "TESTBED_LOCK_DIR": str(tmp_path / "l")},
    )
    assert (
        moved.store_path.parent == tmp_path / "d"
        and moved.lock_path("emulated") == tmp_path / "l/emulated.lock"
    )


def test_a_path_in_a_file_is_relative_to_that_file(tmp_path: Path) -> None:
    (tmp_path / "testbed.toml").write_text('inventory = "labs/mine"')
    assert get(tmp_path).inventory == tmp_path / "labs/mine"


def test_the_default_inventory_is_the_emulated_one(tmp_path: Path) -> None:
    assert get(tmp_path).inventory.parts[-2:] == ("inventory", "emulated")
    (tmp_path / "inventory/emulated").mkdir(parents=True)
    assert get(tmp_path).inventory == tmp_path / "inventory/emulated"


def test_all_problems_of_all_files_come_at_once(tmp_path: Path) -> None:
    user_file(tmp_path, "inventroy = 'x'\ntimeout = true")
    (tmp_path / "testbed.toml").write_text("timeout = ")
    with pytest.raises(BadFile) as caught:
        get(tmp_path)
    text = str(caught.value)
    assert len(caught.value.problems) == 3
    assert (
        "did you mean inventory?" in text and "timeout: wanted" in text and "testbed.toml" in text
    )


def test_a_wrong_timeout_says_where_it_came_from(tmp_path: Path) -> None:
    with pytest.raises(Usage, match="TESTBED_TIMEOUT: 'soon' is not a duration"):
        get(tmp_path, env={"TESTBED_TIMEOUT": "soon"})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("2m", 120),
        ("500ms", 0.5),
        ("1h", 3600),
        ("7", 7),
        ("30d", 2592000),
        (" 1.5 s", 1.5),
    ],
)
def test_durations_are_read_with_their_unit(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "0", "nan", "inf", "1e99h", "5 days"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration(text)


def test_influx_is_off_unless_asked_for_and_its_keys_stand_in_a_table(tmp_path: Path) -> None:
    assert get(tmp_path).influx == InfluxSettings() and get(tmp_path).influx.url == "none"
    (tmp_path / "testbed.toml").write_text(
        '[telemetry.influx]\nurl = "http://db:8086/"\ndb = "lab/week"\ngzip = true\nretention = "30d"\n'
    )
    assert get(tmp_path).influx == InfluxSettings(
        "http://db:8086", "lab/week", "", "auto", True, 2592000.0
    )
    moved = get(tmp_path, env={"TESTBED_INFLUX_URL": "auto", "TESTBED_INFLUX_API": "v1"})
    assert (moved.influx.url, moved.influx.api, moved.influx.db) == ("auto", "v1", "lab/week")
    assert moved.origins["telemetry.influx.url"] == "environment"


def test_wrong_words_about_influx_are_all_named_and_a_password_is_not_repeated(
    tmp_path: Path,
) -> None:
    (tmp_path / "testbed.toml").write_text(
        '[telemetry]\nflux = 1\n[telemetry.influx]\nurl = "http://ann:s3cret@db"\napi = "v3"\n'
        'gzip = "perhaps"\ndb = "a b"\nretention = "1s"\n'
    )
    with pytest.raises(BadFile) as caught:
        get(tmp_path)
    text = str(caught.value)
    assert (
        len(caught.value.problems) == 6 and "s3cret" not in text and "TESTBED_INFLUX_TOKEN" in text
    )
    for message in (
        "unknown key 'telemetry.flux'",
        "wanted auto, v1 or v2, found 'v3'",
        "wanted yes or no",
        "'a b'",
        "1h at least",
    ):
        assert message in text
    with pytest.raises(BadFile, match=r"TESTBED_INFLUX_URL: wanted none, auto or http"):
        get(tmp_path, env={"TESTBED_INFLUX_URL": "influx:8086"})


def test_how_many_pairs_and_hosts_at_once_are_a_large_lab_s_own_choice(tmp_path: Path) -> None:
    assert get(tmp_path).bounds.pairs == 10_000 and 8 <= get(tmp_path).bounds.at_once <= 32
    user_file(tmp_path, '[verify]\npairs = 500\n[hosts]\nat_once = "16"')
    assert get(tmp_path).bounds == Bounds(500, 16)
    assert get(tmp_path, {"verify.pairs": "all"}, {"TESTBED_HOSTS_AT_ONCE": "4"}).bounds == Bounds(
        None, 4
    )
    assert get(tmp_path, env={"TESTBED_VERIFY_PAIRS": "7"}).bounds.pairs == 7


@pytest.mark.parametrize(
    "text", ["0", "-1", "1.5", "1e3", "all hosts", "٣", "1000000000000", "100000001", "0x10", "All"]
)
def test_a_number_of_pairs_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        Usage, match=r"--pairs: wanted a whole number from 1 to 100000000 or all, found "
    ):
        get(tmp_path, {"verify.pairs": text})


@pytest.mark.parametrize("text", ["0", "257", "all", "-4", "2.0", "16;reboot", "9" * 5000])
def test_a_number_of_hosts_at_once_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        Usage, match=r"TESTBED_HOSTS_AT_ONCE: wanted a whole number from 1 to 256, found "
    ):
        get(tmp_path, env={"TESTBED_HOSTS_AT_ONCE": text})


@pytest.mark.parametrize(
    "table", ["[verify]\npairs = true", "[hosts]\nat_once = [1]", "[verify]\npair = 3"]
)
def test_a_bound_of_another_kind_in_a_file_is_named(tmp_path: Path, table: str) -> None:
    user_file(tmp_path, table)
    with pytest.raises(BadFile, match=r"verify\.pairs|hosts\.at_once"):
        get(tmp_path)
