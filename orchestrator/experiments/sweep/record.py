"""The folder of a campaign: one file for every trial that has ended, and the list of all trials."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optics.errors import BadFile, Locked, Missing, Untrusted
from optics.plain import did_you_mean
from orchestrator.experiments.files.sweep.values import Campaign, Trial
from orchestrator.experiments.sweep.trial import Outcome
from orchestrator.files.atomic import write_whole
from orchestrator.files.trust import believed, require_own
from orchestrator.processes import file_lock
from orchestrator.results import Json
from orchestrator.settings import Settings, private_dir

SCHEMA = "testbed.sweep-record/1"
LIST, TRIALS, PARQUET, DATABASE = "sweep.json", "trials", "results.parquet", "results.duckdb"
MAX_BYTES = 1 << 20


def sweeps(settings: Settings) -> Path:
    """Where campaigns are kept, a folder each, by name."""
    return settings.state_dir / "sweeps"


@dataclass(frozen=True)
class CampaignRecord:
    """A campaign's folder. data: its name, title, version of the program, and its trials: key and
    labels.
    """

    folder: Path
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.data["name"])

    @property
    def trials(self) -> Sequence[Mapping[str, Any]]:
        return list(self.data["trials"])

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for trial in self.trials for name in trial["labels"]))

    def _file(self, key: str) -> Path:
        return self.folder / TRIALS / f"{key}.json"

    def result(self, key: str) -> dict[str, Any] | None:
        """What became of a trial, None if it has not ended. Raises: BadFile - the file is not one
        of a trial.
        """
        path = self._file(key)
        try:
            with path.open("rb") as file:
                found = json.loads(file.read(MAX_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise BadFile(
                [f"{path}: {error}"],
                hint="delete the file, then make the trial again: testbed experiment sweep FILE --resume",
            ) from error
        if not isinstance(found, dict) or found.get("key") != key:
            raise BadFile([f"{path}: not the result of trial {key}"], hint="delete the file")
        return found

    def keep(self, trial: Trial, outcomes: Sequence[Outcome]) -> None:
        """Save the result of a trial, as a whole: of its attempts the last one counts. Raises:
        Missing - it cannot be written.
        """
        last = outcomes[-1]
        found = {
            "key": trial.key,
            "labels": dict(trial.labels),
            "state": "failed" if last["error"] else "done",
            "attempts": len(outcomes),
            "errors": [each["error"] for each in outcomes if each["error"]],
            **{name: last[name] for name in ("values", "seconds", "worker", "began")},
            "version": self.data["version"],
        }
        try:
            write_whole(
                self._file(trial.key), json.dumps(found, indent=1, ensure_ascii=False) + "\n"
            )
        except OSError as error:
            raise Missing(
                f"{self._file(trial.key)}: {error.strerror or error}",
                hint="free some space, then --resume",
            ) from error

    def results(self) -> Iterator[dict[str, Any]]:
        """The results of the campaign's own trials that have ended, in the order of its file; each
        key once.
        """
        for trial in self.trials:
            found = self.result(str(trial["key"]))
            if found is not None:
                yield found | {"labels": trial["labels"]}


def begin_campaign(
    settings: Settings, campaign: Campaign, version: str, *, resume: bool
) -> CampaignRecord:
    """Make the folder of a campaign, or take it again.

    Results of trials whose inputs are the same are kept when it is resumed, also if the file has
    other trials now. Raises: Missing - it cannot be made. Untrusted - another user made it, or may
    write there. BadFile - it has results already and is not resumed, or those of another version.
    """
    folder = sweeps(settings) / campaign.name
    try:
        for each in (sweeps(settings), folder, folder / TRIALS):
            _require_own(private_dir(each))
    except OSError as error:
        raise Missing(
            f"{folder}: {error.strerror or error}", hint="check the setting state_dir"
        ) from error
    made = sum(1 for _ in (folder / TRIALS).glob("*.json"))
    again = f"testbed experiment sweep FILE --resume keeps them; else give the campaign another name, or delete {folder}"
    if made and not resume:
        raise BadFile([f"{folder}: this campaign has {made} results already"], hint=again)
    if made and (before := read_campaign_record(folder).data["version"]) != version:
        raise BadFile(
            [
                f"{folder}: its {made} results are of version {before} of the program, this is {version}"
            ],
            hint=f"give the campaign another name, or delete {folder}",
        )
    data: dict[str, Json] = {
        "schema": SCHEMA,
        "name": campaign.name,
        "title": campaign.title,
        "version": version,
        "trials": [{"key": trial.key, "labels": dict(trial.labels)} for trial in campaign.trials],
    }
    try:
        write_whole(folder / LIST, json.dumps(data, ensure_ascii=False) + "\n")
    except OSError as error:
        raise Missing(
            f"{folder / LIST}: {error.strerror or error}", hint="check the setting state_dir"
        ) from error
    return CampaignRecord(folder, data)


def _require_own(folder: Path) -> None:
    require_own(folder, believed())
    if folder.stat().st_mode & stat.S_IWOTH:
        raise Untrusted(
            f"{folder}: every user of this machine may write results there",
            hint=f"chmod o-w {folder}",
        )


@contextmanager
def campaign_lock(settings: Settings, name: str) -> Iterator[None]:
    """Keep other commands from running the same campaign. Raises: Locked - one does."""
    with file_lock(private_dir(sweeps(settings)) / f"{name}.lock") as own:
        if not own:
            raise Locked(
                f"campaign {name} is being run by another command",
                hint="testbed experiment sweep show",
            )
        yield


def read_campaign_record(folder: Path) -> CampaignRecord:
    """A campaign that was begun. Raises: BadFile - its list cannot be read. Untrusted - as
    `begin_campaign`.
    """
    path = folder / LIST
    _require_own(folder)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(
            [f"{path}: {error}"], hint="delete the folder, or run the campaign with --resume"
        ) from error
    if (
        not isinstance(found, dict)
        or found.get("schema") != SCHEMA
        or not isinstance(found.get("trials"), list)
    ):
        raise BadFile([f"{path}: not the record of a campaign ({SCHEMA})"])
    return CampaignRecord(folder, found)


def find_campaign(settings: Settings, name: str | None) -> CampaignRecord:
    """The campaign of this name, None: the one that was begun last. Raises: Missing - there is
    none; as `read_campaign_record`.
    """
    existing = {
        path.parent.name: path.stat().st_mtime_ns for path in sweeps(settings).glob(f"*/{LIST}")
    }
    if not existing or (name is not None and name not in existing):
        text = (
            f"there is no campaign {name}{did_you_mean(name, existing)}"
            if name
            else "no campaign was run yet"
        )
        raise Missing(text, hint="testbed experiment sweep examples/sweeps/methods.yaml")
    return read_campaign_record(
        sweeps(settings) / (name or max(existing, key=lambda each: existing[each]))
    )
