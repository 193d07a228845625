"""Pytest fixtures for drivers and labs, for this project and for projects that use it.

testbed: runs the command line on a private emulated lab. device: a driver connected to its
emulator. emulated_lab: a running private lab. fault: injects faults into the device, and removes
them after the test.

Nothing is imported or started before a test uses one of them, so that a repository with its own
package `conformance` or `drivers` can run its tests. If such a package hides that of this project,
the fixtures say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conformance.device import Opened
    from conformance.lab import Lab
    from conformance.private import CommandLine


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of every pytest run; they only affect the fixtures."""
    group = parser.getgroup("testbed", "optical testbed: drivers and emulated labs")
    group.addoption(
        "--testbed-driver",
        metavar="NAME",
        default=None,
        help="driver of the fixtures device and emulated_lab",
    )
    group.addoption(
        "--testbed-hosts",
        metavar="N",
        type=int,
        default=0,
        help="hosts of the emulated lab (needs root); default 0",
    )
    parser.addini(
        "testbed_driver", "driver of the fixtures device and emulated_lab", default="polatis-scpi"
    )
    parser.addini(
        "testbed_emulator",
        "command that runs your own emulator; {port} is replaced by the TCP port",
        default="",
    )
    parser.addini(
        "testbed_address",
        "address of the device behind testbed_emulator",
        default="tcp://127.0.0.1:{port}",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker that chooses a driver."""
    config.addinivalue_line(
        "markers",
        "testbed(driver=..., hosts=...): the driver, and the hosts, of this test's emulated lab",
    )


@pytest.fixture(scope="session")
def testbed_labs() -> Iterator[Callable[[str, int], Lab]]:
    """Labs by driver and number of hosts, each started at its first use and stopped at the end of
    the session.
    """
    _check_packages()
    from conformance.private import Labs

    with Labs() as labs:
        yield labs


@pytest.fixture
def emulated_lab(request: pytest.FixtureRequest, testbed_labs: Callable[[str, int], Lab]) -> Lab:
    """A running private lab: `inventory`, `devices`, `truth(name)`."""
    return testbed_labs(*_wanted(request))


@pytest.fixture
def testbed(emulated_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """The command line on the private lab: `testbed("status")` returns the parsed JSON, an error
    raises `Failed`.
    """
    from conformance.private import CommandLine

    return CommandLine(emulated_lab.inventory, tmp_path_factory.mktemp("testbed"))


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """The driver, connected to its emulator; afterwards it is closed and the emulator is reset.

    Its methods are coroutines, for an event loop of the test or for `device.run`.
    """
    _check_packages()
    from conformance.device import own_emulator, private

    driver = _wanted(request)[0]
    command = str(request.config.getini("testbed_emulator"))
    if command:
        with own_emulator(driver, command, str(request.config.getini("testbed_address"))) as opened:
            yield opened
        return
    labs: Callable[[str, int], Lab] = request.getfixturevalue("testbed_labs")
    with private(labs(driver, 0), driver) as opened:
        yield opened


@pytest.fixture
def fault(device: Opened) -> Iterator[Callable[..., int]]:
    """`fault("drop-after", on="write", count=1)` arms a fault of the device; all are removed after
    the test.
    """
    truth = device.truth
    yield truth.fault
    truth.mend()


def _check_packages() -> None:
    """Fail the test if another package hides one of this project on sys.path."""
    from optical_testbed_home import HOME, hidden_packages

    if hidden := hidden_packages():
        text = ", ".join(f"`{name}` is {place}" for name, place in hidden.items())
        fix = f"rename it, or run these tests from another directory with --import-mode=importlib; wanted {HOME}"
        pytest.fail(
            f"packages of optical-testbed are hidden by others of the same name: {text}; {fix}",
            pytrace=False,
        )


def _wanted(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Driver and number of hosts: from the marker of the test, the option, or the configuration
    file.
    """
    mark = request.node.get_closest_marker("testbed")
    given: dict[str, Any] = dict(mark.kwargs) if mark else {}
    if mark and mark.args:
        given["driver"] = mark.args[0]
    driver = (
        given.get("driver")
        or request.config.getoption("--testbed-driver")
        or request.config.getini("testbed_driver")
    )
    return str(driver), int(given.get("hosts", request.config.getoption("--testbed-hosts")))
