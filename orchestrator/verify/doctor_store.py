"""What `doctor` checks of the store and the files of runs."""

from __future__ import annotations

import stat

from optics.errors import TestbedError
from optics.plain import counted
from orchestrator.settings import Settings
from orchestrator.verify.probe import Probe


def file_modes(settings: Settings) -> list[Probe]:
    """Whether other users can read what runs left, or replace it."""
    checks = []
    for folder in (
        settings.state_dir,
        settings.state_dir / "runs",
        settings.data_dir,
        settings.cache_dir,
    ):
        if not folder.is_dir():
            continue
        mode = folder.stat().st_mode
        if mode & 0o022 and not mode & stat.S_ISVTX:
            text = f"{folder}: others may write there ({stat.filemode(mode)})"
            checks.append(
                Probe(
                    "rights of files",
                    "fail",
                    text,
                    f"chmod go-w {folder}",
                    "nothing safely",
                    "store",
                )
            )
    open_runs = [
        run
        for run in (settings.state_dir / "runs").glob("*")
        if run.is_dir() and run.stat().st_mode & 0o077
    ]
    if open_runs:
        text = (
            f"{counted(len(open_runs), 'run')} can be read by others, {open_runs[0].name} for one"
        )
        fix = f"chmod -R go-rwx {settings.state_dir / 'runs'}"
        checks.append(Probe("rights of files", "warn", text, fix, "everything", "store"))
    return checks or [
        Probe(
            "rights of files", "ok", "the runs' files are readable by this user alone", area="store"
        )
    ]


def who_may_lock(settings: Settings) -> list[Probe]:
    """Who may lock a lab; other users must not be able to delay a change or write this user's lock
    files.
    """
    from orchestrator.store.one_store import who_locks

    try:
        return [Probe("who may lock", "ok", who_locks(settings.lock_dir), area="store")]
    except TestbedError as error:
        return [Probe("who may lock", "fail", str(error), error.hint, "what only reads", "store")]


def store_checks(settings: Settings) -> list[Probe]:
    from orchestrator.store.store import Store

    if not settings.store_path.exists():
        return [Probe("store", "ok", "no runs yet", area="store")]
    try:
        with Store(settings.store_path, shared=settings.store is not None) as store:
            died = [
                r
                for r in store.history(limit=50)
                if r.status == "died" and r.unfinished and r.verb != "sample"
            ]
    except (TestbedError, OSError) as error:
        return [
            Probe(
                "store",
                "fail",
                str(error),
                getattr(error, "hint", ""),
                "`lab`, `examples`",
                "store",
            )
        ]
    checks = [Probe("store", "ok", str(settings.store_path), area="store"), _runs(settings)]
    for run in died[:3]:
        paths = f"testbed resume {run.id} goes on, testbed rollback {run.id} goes back"
        paths = "testbed service start schedule goes on" if run.verb == "schedule" else paths
        fix = f"{paths}; testbed status shows the present state"
        checks.append(
            Probe(
                "run that died",
                "warn",
                f"{run.id}: {run.verb} {run.plan_name}".rstrip(),
                fix,
                "everything",
                "store",
            )
        )
    if len(died) > 3:
        checks.append(
            Probe(
                "run that died",
                "warn",
                f"{len(died) - 3} more",
                "testbed run list",
                "everything",
                "store",
            )
        )
    return checks


def _runs(settings: Settings) -> Probe:
    """The space that runs take; none is removed automatically."""
    from orchestrator.store.runs import KEEP, LARGE_MB, MANY, folder_bytes

    folder = settings.state_dir / "runs"
    number = sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0
    mb = folder_bytes(folder) / 1e6
    text = f"{number} in {folder}, {mb:.0f} MB"
    if number < MANY and mb < LARGE_MB:
        return Probe("runs", "ok", text, area="store")
    return Probe(
        "runs",
        "warn",
        f"{text}; none is removed unasked",
        f"testbed run list --prune --keep {KEEP}",
        "everything",
        "store",
    )


def examine_store(settings: Settings, *, recover: bool) -> list[Probe]:
    """Check the store's whole file; with `recover`, copy what is readable of a damaged one into a
    new file.

    Raises: StoreFailed - the disk is full, or nothing can be read. Locked - a command has the store
    open that is to be replaced.
    """
    from orchestrator.store.rescue import check_store_file, rescue

    path = settings.store_path
    if not path.exists():
        return [Probe("store", "ok", f"{path}: no runs yet", area="store")]
    found = check_store_file(path)
    if not found.findings:
        rows = ", ".join(f"{count} {table}" for table, count in found.rows.items() if count)
        return [
            Probe("store", "ok", f"{path} is whole: {rows or 'nothing in it yet'}", area="store")
        ]
    if not recover:
        text = "\n".join([f"{path} is damaged", *found.findings])
        fix = "testbed doctor --store --recover takes what can be read into a new file and keeps this one"
        return [Probe("store", "fail", text, fix, "`lab`, `examples`", "store")]
    done = rescue(path)
    rows = ", ".join(f"{count} {table}" for table, count in done.rows.items() if count)
    checks = [
        Probe(
            "store",
            "ok",
            f"{path} is new: {rows or 'nothing'}; the damaged one is {done.kept}",
            area="store",
        )
    ]
    return checks + [
        Probe(
            "store", "warn", loss, "testbed status shows the present state", "everything", "store"
        )
        for loss in done.losses
    ]
