"""The Dask cluster that runs a campaign's trials: worker processes of this machine, or those of a
scheduler that runs elsewhere.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optics.errors import Missing, Refused, Unreachable, Usage, first_line
from optics.extras import need
from orchestrator.experiments.sweep.version import of_program
from orchestrator.settings import variable

if TYPE_CHECKING:
    from distributed import Client

CONNECT_S = 10.0
_ADDRESS = re.compile(r"(tcp|tls)://[^\s/]+:\d{1,5}/?")
_OWN = {
    # No pages about the campaign are served to other users of this machine.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.admin.tick.limit": "1h",
}


def installed() -> None:
    """Raises: Missing - Dask is not installed."""
    need("sweep", "campaigns", "distributed")


@contextmanager
def dask_client(
    on: str, workers: int, folder: Path, state_dir: Path, resources: Collection[str] = ()
) -> Iterator[Client]:
    """A client of the scheduler at `on`, or, for `local`, of `workers` processes of this machine
    that end with the block.

    folder: of this campaign alone, for what Dask writes to disk; removed at the end. state_dir: of
    local workers, for their labs. resources: of which the first of them has one each. The processes
    speak TLS with keys made for them: who reaches a scheduler has its workers run what he likes,
    and ports of this machine are reached by all of its users. Raises: Unreachable - no scheduler
    there. Usage - not an address. Missing - local workers do not start.
    """
    if on != "local" and not _ADDRESS.fullmatch(on):
        raise Usage(f"--on {on}: wanted local, or an address such as tcp://scheduler:8786")
    import dask

    # before its configuration is changed: it is completed by the import
    from distributed import Client

    # Dask's configuration gives both levels and outputs of their own
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what is wrong is said by this program
    own = {"temporary-directory": str(folder)}
    shutil.rmtree(folder, ignore_errors=True)  # of a command that was killed
    with ExitStack() as at_end, dask.config.set(_OWN | own if on == "local" else own):
        at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        if on == "local":
            try:
                cluster = at_end.enter_context(_local(workers, folder, state_dir, resources))
            except RuntimeError as error:
                hint = 'a script runs campaigns below if __name__ == "__main__":, since workers import it'
                raise Missing(f"the worker processes do not start: {error}", hint=hint) from error
            with Client(cluster, set_as_default=False) as client:
                yield client
            return
        try:
            client = Client(on, timeout=CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            text = first_line(error)
            raise Unreachable(
                f"no Dask scheduler at {on}: {text}",
                hint="start one: dask scheduler; or --on local",
            ) from error
        try:
            yield client
        finally:
            client.close(timeout=2)


def _local(workers: int, folder: Path, state_dir: Path, resources: Collection[str]) -> Any:
    """Processes of one thread each."""
    from distributed import Nanny, Scheduler, Security, SpecCluster

    both = {
        "security": Security.temporary(),
        "protocol": "tls",
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
    }
    own = both | {
        "nthreads": 1,
        "preload": ["orchestrator.experiments.sweep.trial"],
        "local_directory": str(folder),
        "silence_logs": logging.CRITICAL,
        "env": {variable("state_dir"): str(state_dir)},
    }
    return SpecCluster(
        scheduler={"cls": Scheduler, "options": both | {"port": 0, "dashboard": False}},
        workers={
            number: {
                "cls": Nanny,
                "options": own
                | {"resources": dict.fromkeys(resources, 1) if number == 0 else {}, "name": number},
            }
            for number in range(workers)
        },
        security=both["security"],
        asynchronous=False,
    )


def concurrent_trials(client: Client, resources: Collection[str]) -> dict[str, int]:
    """How many trials run at once of those that take each resource; empty: none.

    Raises: Missing - no worker, or none offers a resource. Refused - workers run another version of
    the program, by name.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"]
    if not workers:
        raise Missing("the Dask scheduler has no worker", hint="start one: dask worker ADDRESS")
    answers = client.run(of_program, on_error="return")
    wanted = of_program()
    wrong = [
        f"{workers[address].get('name', address)} on {workers[address].get('host', '?')}: {_reported(found)}"
        for address, found in answers.items()
        if found != wanted and address in workers
    ]
    if wrong:
        text = "; ".join(sorted(wrong)[:8])
        raise Refused(
            f"this is version {wanted}; other workers: {text}",
            hint="install the same version there",
        )
    slots = {}
    for resource in resources:
        slots[resource] = sum(
            int(each.get("resources", {}).get(resource, 0)) if resource else each["nthreads"]
            for each in workers.values()
        )
        if not slots[resource]:
            hint = f'on the machine of the lab: dask worker ADDRESS --nthreads 1 --resources "{resource}=1"'
            raise Missing(
                f"no worker offers the resource {resource}, of which trials take one", hint=hint
            )
    return slots


def _reported(found: object) -> str:
    if isinstance(found, ImportError):
        return f"optical-testbed is not installed ({found})"
    return str(found)
