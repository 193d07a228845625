"""Where everything is kept and what the operator chose: flag, TESTBED_* variable, testbed.toml,
user's file, machine's, default.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from optics.errors import BadFile, Usage
from optics.plain import reason
from orchestrator.files.trust import (
    SHARED,
    believed,
    read_own,
    require_own_folder,
    require_own_inventory,
)

PROJECT_FILE = "testbed.toml"

KEYS = {
    "inventory": "directory with hosts.yml, devices.yml and fibres.yml",
    "timeout": "longest time a command may take (90s, 2m, 500ms, or seconds)",
    "wait": "longest time to wait for others who hold what a command needs (10m); by default not at all",
    "data_dir": "directory of the run store",
    "store": "directory of a run store that several users of this machine share",
    "state_dir": "directory of journals and logs",
    "lock_dir": "directory of the records of which store keeps which lab, shared by a group of this machine's users",
    "trust": "users whose settings files and inventories are trusted like one's own (ann, bob); not in testbed.toml",
    "owner": "whose part of the lab to work on (letters, digits, - _ .); yourself by default",
    "verify.pairs": "how many ordered pairs of hosts are asked for their hops, beyond which some are drawn (10000), or all",
    "hosts.at_once": "how many hosts are logged in to, asked for their pairs, or handled by Ansible at the same time (1 to 256)",
    "safe_plan": "plan that the button of `testbed ui` brings up",
    "telemetry.sample_hz": "how many times a second hosts sample their ports while the lab is changed, 10 to 1000; 0: not at all",
    "telemetry.influx.url": "where copies of the journals go: none, auto (a private influxd) or the URL of an InfluxDB",
    "telemetry.influx.db": "database there (or db/retention policy); in InfluxDB 2 and 3 the bucket",
    "telemetry.influx.org": "organisation in InfluxDB 2",
    "telemetry.influx.api": "auto, v1 or v2",
    "telemetry.influx.gzip": "yes or no",
    "telemetry.influx.retention": "how long InfluxDB keeps points (30d), if testbed creates the database",
}
"""Every setting, with its meaning."""
_OPTIONS = {
    "inventory": "--inventory",
    "timeout": "--timeout",
    "wait": "--wait",
    "owner": "--as",
    "verify.pairs": "--pairs",
}
"""Settings that are options of commands as well."""
_PLACES = ("inventory", "data_dir", "store", "state_dir", "lock_dir", "safe_plan")
_PREFIX = "telemetry."
"""Not part of the variable's name: telemetry.influx.url is TESTBED_INFLUX_URL, the same word as in
Grafana's provisioning.
"""


@dataclass(frozen=True, slots=True)
class InfluxSettings:
    """Which InfluxDB gets copies of the journals. `retention_s` 0: for ever. The token is in
    TESTBED_INFLUX_TOKEN only.
    """

    url: str = "none"
    db: str = "testbed"
    org: str = ""
    api: str = "auto"
    gzip: bool = False
    retention_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a large lab is spared. pairs: ordered pairs of hosts that verification asks at most,
    None: all, whatever their number.

    at_once: hosts that are logged in to, asked for their pairs, or handled by Ansible at the same
    time. The default is by the cores of this machine, as each login and each process of Ansible
    takes one of them, and 32 at most.
    """

    pairs: int | None = 10_000
    at_once: int = min(32, max(8, 4 * (os.cpu_count() or 1)))


BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Settings:
    """What a command runs with. `origins` says for each key where its value came from. `timeout_s`
    in seconds.
    """

    inventory: Path
    timeout_s: float
    data_dir: Path
    state_dir: Path
    cache_dir: Path
    lock_dir: Path
    user: str
    owner: str = ""
    """Whose plan, circuits and jobs the command works on: the user's own unless `--as` or the
    setting names another owner.
    """
    store: Path | None = None
    """Where the store is that several users share; None: this user has one of his own, in
    `data_dir`.
    """
    wait_s: float = 0.0
    influx: InfluxSettings = InfluxSettings()
    sample_hz: float = 10.0
    safe_plan: Path | None = None
    bounds: Bounds = BOUNDS
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def store_path(self) -> Path:
        return (self.store or self.data_dir) / "testbed.sqlite3"

    def run_dir(self, run: str) -> Path:
        """The directory of one run's journal and logs."""
        return self.runs_dir / run

    @property
    def runs_dir(self) -> Path:
        """Holds one directory for every run."""
        return self.state_dir / "runs"

    def lock_path(self, lab: str) -> Path:
        """The file that records which store keeps a lab, by the key of
        `orchestrator.store.keys.lab_key`.
        """
        return self.lock_dir / f"{lab}.lock"


def duration(text: str) -> float:
    """Read a duration: `90s`, `2m`, `500ms`, `1h`, `30d`, or plain seconds. Raises: ValueError -
    anything else, not above zero.
    """
    clean = text.strip().lower()
    units = (("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0), ("", 1.0))
    unit, factor = next((unit, factor) for unit, factor in units if clean.endswith(unit))
    clean = clean.removesuffix(unit)
    try:
        seconds = float(clean) * factor
    except ValueError:
        raise ValueError(
            f"{text!r} is not a duration: a number with ms, s, m, h or d, such as 90s or 2m"
        ) from None
    if not 0 < seconds < 1e9:
        raise ValueError(f"{text!r} is not a duration above zero")
    return seconds


def frequency(text: str) -> float:
    """Read how many samples a second are wanted. Raises: ValueError - not 0, and not from 0.1 to
    1000.
    """
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if found and not 0.1 <= found <= 1000:
        raise ValueError(f"wanted samples a second, 0.1 to 1000, or 0 for none; found {text!r}")
    return found


def _bounds(values: Mapping[str, str], origins: Mapping[str, str], problems: list[str]) -> Bounds:
    found: dict[str, int | None] = {"verify.pairs": BOUNDS.pairs, "hosts.at_once": BOUNDS.at_once}
    for key, most in (("verify.pairs", 100_000_000), ("hosts.at_once", 256)):
        text = values.get(key, "").strip()
        if key not in values:
            continue
        if key == "verify.pairs" and text == "all":
            found[key] = None
        elif re.fullmatch(r"[0-9]{1,9}", text) and 1 <= int(text) <= most:
            found[key] = int(text)
        else:
            also = " or all" if key == "verify.pairs" else ""
            problems.append(
                f"{_named(origins[key], key)}: wanted a whole number from 1 to {most}{also}, found {values[key][:40]!r}"
            )
    return Bounds(found["verify.pairs"], found["hosts.at_once"] or BOUNDS.at_once)


def load(
    flags: Mapping[str, str | None] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Settings:
    """Collect the settings.

    Raises: BadFile - a settings file does not parse, has an unknown key or a wrong value; all at
    once. Usage - an option or a variable has a wrong value. Untrusted - a settings file, the
    inventory or one of this program's directories belongs to a user who is not trusted.
    """
    from platformdirs import PlatformDirs

    env = os.environ if env is None else env
    cwd = cwd or Path.cwd()
    dirs = PlatformDirs("testbed", appauthor=False)
    user_file = Path(dirs.user_config_dir) / "config.toml"
    problems: list[str] = []
    layers: list[tuple[str, Mapping[str, str]]] = [
        ("flag", {k: v for k, v in (flags or {}).items() if v is not None}),
        ("environment", {k: env[variable(k)] for k in KEYS if env.get(variable(k))}),
    ]
    own = believed()
    lasting = [
        (str(path), _from_file(path, problems, own))
        for path in (user_file, Path(dirs.site_config_dir) / "config.toml")
    ]
    uids = _trusted([*layers, *lasting], problems)
    project = _from_file(cwd / PROJECT_FILE, problems, uids)
    if project.pop("trust", ""):
        problems.append(
            f"{cwd / PROJECT_FILE}: trust: is decided elsewhere: TESTBED_TRUST or {user_file}"
        )
    layers += [(str(cwd / PROJECT_FILE), project), *lasting]
    values: dict[str, str] = {}
    origins = dict.fromkeys(KEYS, "default")
    for origin, layer in reversed(layers):
        for key, value in layer.items():
            values[key], origins[key] = value, origin
    timeout = 300.0
    if "timeout" in values:
        try:
            timeout = duration(values["timeout"])
        except ValueError as error:
            problems.append(f"{_named(origins['timeout'], 'timeout')}: {error}")
    wait = 0.0
    if "wait" in values:
        try:
            wait = duration(values["wait"])
        except ValueError as error:
            problems.append(f"{_named(origins['wait'], 'wait')}: {error}")
    user = _user()
    owner = values.get("owner", user)
    if not re.fullmatch(r"[\w.-]{1,64}", owner):
        problems.append(
            f"{_named(origins['owner'], 'owner')}: {owner!r} is no name of letters, digits, - _ ."
        )
    influx = _influx(values, origins, problems)
    sample_hz = 10.0
    if "telemetry.sample_hz" in values:
        try:
            sample_hz = frequency(values["telemetry.sample_hz"])
        except ValueError as error:
            problems.append(
                f"{_named(origins['telemetry.sample_hz'], 'telemetry.sample_hz')}: {error}"
            )
    bounds = _bounds(values, origins, problems)
    if problems:
        files = (str(cwd / PROJECT_FILE), *dict(lasting))
        of_files = any(line.startswith(files) for line in problems)
        raise BadFile(problems) if of_files else Usage("\n".join(problems))
    state = (
        Path(values["state_dir"]).expanduser()
        if "state_dir" in values
        else Path(dirs.user_state_dir)
    )
    data = (
        Path(values["data_dir"]).expanduser() if "data_dir" in values else Path(dirs.user_data_dir)
    )
    for folder in (state, data, Path(dirs.user_cache_dir)):
        if folder.exists():
            require_own_folder(folder, uids)
    inventory = _inventory(values.get("inventory"), cwd)
    require_own_inventory(inventory, uids)
    return Settings(
        inventory=inventory,
        timeout_s=timeout,
        data_dir=data,
        state_dir=state,
        cache_dir=Path(dirs.user_cache_dir),
        lock_dir=Path(values["lock_dir"]).expanduser()
        if "lock_dir" in values
        else _lock_dir(state),
        user=user,
        owner=owner,
        store=Path(values["store"]).expanduser() if "store" in values else None,
        wait_s=wait,
        influx=influx,
        sample_hz=sample_hz,
        safe_plan=cwd / Path(values["safe_plan"]).expanduser() if "safe_plan" in values else None,
        bounds=bounds,
        origins=origins,
    )


def _named(origin: str, key: str) -> str:
    """A setting as whoever gave it knows it: `--timeout`, `TESTBED_TIMEOUT`,
    `/home/ann/testbed.toml: timeout`.
    """
    return {"flag": _OPTIONS.get(key, key), "environment": variable(key)}.get(
        origin, f"{origin}: {key}"
    )


def variable(key: str) -> str:
    """The environment variable of a settings key."""
    return f"TESTBED_{key.removeprefix(_PREFIX).replace('.', '_').upper()}"


def _influx(
    values: Mapping[str, str], origins: Mapping[str, str], problems: list[str]
) -> InfluxSettings:
    found = {
        key.rpartition(".")[2]: value
        for key, value in values.items()
        if key.startswith("telemetry.influx.")
    }
    reply = {
        name: _named(origins[f"telemetry.influx.{name}"], f"telemetry.influx.{name}")
        for name in found
    }
    default = InfluxSettings()
    url = found.get("url", default.url)
    if not re.fullmatch(r"none|auto|https?://[^\s@?#]+", url):
        secret = "@" in url or "?" in url  # do not repeat what may be a password
        text = (
            "no password or query belongs in it; the token is taken from TESTBED_INFLUX_TOKEN"
            if secret
            else f"found {url!r}"
        )
        problems.append(f"{reply['url']}: wanted none, auto or http://HOST:PORT; {text}")
    api = found.get("api", default.api)
    if api not in ("auto", "v1", "v2"):
        problems.append(f"{reply['api']}: wanted auto, v1 or v2, found {api!r}")
    switches = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}
    packed = found.get("gzip", "no").lower()
    if packed not in switches:
        problems.append(f"{reply['gzip']}: wanted yes or no, found {packed!r}")
    db = found.get("db", default.db)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", db):
        problems.append(f"{reply['db']}: {db!r} is no name of letters, digits, - _ .")
    retention = 0.0
    if "retention" in found:
        try:
            retention = duration(found["retention"])
        except ValueError as error:
            problems.append(f"{reply['retention']}: {error}")
        else:
            # InfluxDB 1.x: "retention policy duration must be at least 1h0m0s"
            if retention < 3600:
                problems.append(f"{reply['retention']}: InfluxDB keeps points for 1h at least")
    return InfluxSettings(
        url.rstrip("/"),
        db,
        found.get("org", default.org),
        api,
        switches.get(packed, False),
        retention,
    )


def private_dir(path: Path) -> Path:
    """Make `path` for this user only, if it is not there yet, and return it."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def _trusted(
    layers: Iterable[tuple[str, Mapping[str, str]]], problems: list[str]
) -> frozenset[int]:
    origin, names = next(
        ((origin, layer["trust"]) for origin, layer in layers if "trust" in layer), ("", "")
    )
    try:
        return believed(names.replace(",", " ").split())
    except ValueError as error:
        problems.append(f"{_named(origin, 'trust')}: {error}")
        return believed()


def _from_file(path: Path, problems: list[str], uids: Collection[int]) -> dict[str, str]:
    try:
        text = read_own(path, uids)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path}: cannot be read: {reason(error)}")
        return {}
    import tomllib

    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problems.append(
            f"{path}: {'nested too deep' if isinstance(error, RecursionError) else error}"
        )
        return {}
    values: dict[str, str] = {}
    for key, value in _flat(table):
        if key not in KEYS:
            near = get_close_matches(key, KEYS, 1)
            problems.append(
                f"{path}: unknown key {key!r}; "
                + (f"did you mean {near[0]}?" if near else f"known: {', '.join(KEYS)}")
            )
        elif isinstance(value, bool) and key == "telemetry.influx.gzip":
            values[key] = "yes" if value else "no"
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
            problems.append(f"{path}: {key}: wanted {KEYS[key]}, found {value!r}")
        else:
            is_path = key in _PLACES
            # A relative path in a file means relative to that file, wherever the command was typed.
            values[key] = (
                str(path.parent / Path(str(value)).expanduser()) if is_path else str(value)
            )
    return values


def _flat(table: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """The keys of nested tables with dots between; a table in place of a value stays one, to be
    refused by name.
    """
    found: list[tuple[str, object]] = []
    for key, value in table.items():
        name = prefix + key
        within = isinstance(value, dict) and any(known.startswith(f"{name}.") for known in KEYS)
        found += _flat(value, f"{name}.") if isinstance(value, dict) and within else [(name, value)]
    return found


def _inventory(chosen: str | None, cwd: Path) -> Path:
    if chosen is not None:
        return cwd / Path(chosen).expanduser()
    here = cwd / "inventory" / "emulated"
    return here if here.is_dir() else Path(__file__).resolve().parents[1] / "inventory" / "emulated"


def _lock_dir(state: Path) -> Path:
    """The machine-wide lock directory, if root runs this or shared it with a group; users outside
    that group get an error there.
    """
    if os.geteuid() == 0:
        return SHARED if os.access(SHARED.parent, os.W_OK) else state / "locks"
    with suppress(OSError):
        if SHARED.stat().st_mode & stat.S_IRWXG:
            return SHARED
    return state / "locks"


def _user() -> str:
    """The user who runs this, from the kernel: the environment's USER may be another user's after
    `su` or `sudo`.
    """
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid{os.getuid()}"


def campaigns(settings: Settings) -> Path:
    """Where `testbed experiment compare` keeps its campaigns, a directory each."""
    return settings.state_dir / "campaigns"
