"""The Dask cluster that runs a campaign's trials: worker processes of this machine, or those of a scheduler that runs elsewhere."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optics.errors import BadFile, Missing, Refused, Unreachable
from orchestrator.engine.sweep.version import of_program
from orchestrator.plan.sweep.values import LAB_RESOURCE

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
    if find_spec("distributed") is None:
        hint = f"{sys.executable} -m pip install 'optical-testbed[sweep]'"
        raise Missing("campaigns need the Python package distributed", hint=hint)


@contextmanager
def connected(on: str, workers: int, folder: Path) -> Iterator[Client]:
    """A client of the scheduler at `on`, or, for `local`, of `workers` processes of this machine that end with the block.

    folder: of this user alone, for what Dask writes to disk.
    The processes speak TLS with keys made for them: who reaches a scheduler has its workers run what he likes, and ports of this
    machine are reached by all of its users.
    Raises: Unreachable - no scheduler there. BadFile - not an address.
    """
    if on != "local" and not _ADDRESS.fullmatch(on):
        raise BadFile([f"--on {on}: wanted local, or an address such as tcp://scheduler:8786"])
    import dask
    from distributed import Client  # before its configuration is changed: it is completed by the import

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what is wrong is said by this program
    with dask.config.set(_OWN if on == "local" else {}):
        if on == "local":
            with _local(workers, folder) as cluster, Client(cluster, set_as_default=False) as client:
                yield client
            return
        try:
            client = Client(on, timeout=CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise Unreachable(f"no Dask scheduler at {on}: {words}", hint="start one: dask scheduler; or --on local") from error
        try:
            yield client
        finally:
            client.close(timeout=2)


def _local(workers: int, folder: Path) -> Any:
    """Processes of one thread each; the first one has the machine's slot for labs."""
    from distributed import Nanny, Scheduler, Security, SpecCluster

    security = Security.temporary()
    own: dict[str, Any] = {
        "nthreads": 1,
        "security": security,
        "protocol": "tls",
        "host": "127.0.0.1",
        "dashboard_address": "127.0.0.1:0",
    }
    own |= {"local_directory": str(folder), "silence_logs": logging.CRITICAL}
    return SpecCluster(
        scheduler={
            "cls": Scheduler,
            "options": {
                "protocol": "tls",
                "host": "127.0.0.1",
                "port": 0,
                "security": security,
                "dashboard": False,
                "dashboard_address": "127.0.0.1:0",
            },
        },
        workers={
            number: {"cls": Nanny, "options": own | {"resources": {LAB_RESOURCE: 1} if number == 0 else {}, "name": number}}
            for number in range(workers)
        },
        security=security,
        asynchronous=False,
    )


def checked(client: Client, resource: str) -> int:
    """How many trials run at once. resource: of which each needs one, empty: none.

    Raises: Missing - no worker, or none offers the resource. Refused - workers run another version of the program, by name.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"]
    if not workers:
        raise Missing("the Dask scheduler has no worker", hint="start one: dask worker ADDRESS")
    answers = client.run(of_program, on_error="return")
    wanted = of_program()
    wrong = [
        f"{address} on {workers[address].get('host', '?')}: {_said(found)}"
        for address, found in answers.items()
        if found != wanted and address in workers
    ]
    if wrong:
        words = "; ".join(sorted(wrong)[:8])
        raise Refused(f"this is version {wanted}; other workers: {words}", hint="install the same version there")
    if not resource:
        return sum(each["nthreads"] for each in workers.values())
    slots = sum(int(each.get("resources", {}).get(resource, 0)) for each in workers.values())
    if not slots:
        hint = f'on the machine of the lab: dask worker ADDRESS --resources "{resource}=1"'
        raise Missing(f"no worker offers the resource {resource}, of which each trial needs one", hint=hint)
    return slots


def _said(found: object) -> str:
    if isinstance(found, ImportError):
        return f"optical-testbed is not installed ({found})"
    return str(found)
