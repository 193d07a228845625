"""`Campaign`: the trials of a grid or a list of parameters from Python."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optical_testbed.opened import load
from optical_testbed.progress import Event, Show

if TYPE_CHECKING:
    import pandas

    from orchestrator.experiments.files.sweep.values import Campaign as Read
    from orchestrator.settings import Settings


class Campaign:
    """A campaign file (`testbed.sweep/1`), read and checked; docs/how-to/sweep.md describes it.

    >>> from optical_testbed import Campaign
    >>> campaign = Campaign("examples/sweeps/methods.yaml")
    >>> len(campaign)
    72

    `run` starts worker processes that import the calling script, as `multiprocessing` does: a
    script calls it below `if __name__ == "__main__":`.
    """

    def __init__(
        self, file: str | PathLike[str], *, settings: Mapping[str, object] | None = None
    ) -> None:
        """Read a campaign file. settings: by their names in testbed.toml. Raises: BadFile -
        everything wrong with it.
        """
        from orchestrator.experiments.sweep.verb import load_campaign

        self._file = Path(file)
        self._settings: Settings = load(None, settings, None, None, None)
        self._campaign: Read = load_campaign(self._file)

    def __len__(self) -> int:
        """The number of trials."""
        return len(self._campaign.trials)

    def __repr__(self) -> str:
        return f"<campaign {self.name}, {len(self)} trials: {', '.join(self._campaign.kinds)}>"

    @property
    def name(self) -> str:
        """Its name; results are kept under it."""
        return self._campaign.name

    @property
    def folder(self) -> Path:
        """Where its results are kept: `results.parquet`, `results.duckdb`, and a file for each
        trial.
        """
        from orchestrator.experiments.sweep.record import sweeps

        return sweeps(self._settings) / self.name

    def run(
        self,
        on: str = "local",
        *,
        workers: int | None = None,
        resume: bool = True,
        progress: Show | None = None,
    ) -> tuple[Mapping[str, Any], ...]:
        """Run the trials that have no result yet, and return all results, as `results`; a trial
        that failed is among them.

        on: `local`, or the address of a Dask scheduler. workers: processes of this machine, one a
        core by default. resume: keep results there are; without it they are refused. progress: is
        called with events. Raises: Missing - Dask is not installed, or no worker has what is
        needed. Unreachable - no scheduler. Refused - workers of another version. BadFile - results
        of another version. Interrupted - with what is kept.
        """
        from optical_testbed.events import Events
        from optical_testbed.progress import SHOW
        from orchestrator.experiments.sweep.verb import carried_out

        token = SHOW.set(_shown(progress))
        try:
            again = f"testbed experiment sweep {self._file} --resume"
            carried_out(
                self._settings, self._campaign, Events(), on, workers, resume=resume, again=again
            )
        finally:
            SHOW.reset(token)
        return self.results()

    def results(self) -> tuple[Mapping[str, Any], ...]:
        """The results of the trials that have ended, in the order of the file.

        Each has `key`, `labels` (its parameters), `state` (`done` or `failed`), `attempts`,
        `errors`, `values` (what was measured, by name), `worker`, `began` (Unix time, s), `seconds`
        and `version`.
        """
        from orchestrator.experiments.sweep.record import CampaignRecord

        trials = [{"key": trial.key, "labels": trial.labels} for trial in self._campaign.trials]
        return tuple(CampaignRecord(self.folder, {"trials": trials}).results())

    def frame(self) -> pandas.DataFrame:
        """The results as a DataFrame: a row for each trial, a column for each parameter and value,
        and `state`.

        Raises: ImportError - pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            text = "a DataFrame needs pandas: pip install 'optical-testbed[analysis]'; without it, use results()"
            raise ImportError(text, name="pandas") from error
        return pandas.DataFrame(
            [
                {**each["labels"], "state": each["state"], **each["values"]}
                for each in self.results()
            ]
        )


def _shown(progress: Show | None) -> Any:
    def show(event: Event) -> None:
        if progress is not None:
            progress(event)

    return show
