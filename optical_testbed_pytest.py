"""Fixtures for tests of drivers and labs, for this project's own and for anybody's who installed it.

testbed: runs the command line on a private emulated lab. device: an opened driver in front of its emulator. emulated_lab: a running
private lab. fault: makes the device misbehave, and mends it after the test. conformance: runs checks.

Nothing is imported and nothing starts before a test asks for one of them: a repository with a package `conformance` or `drivers` of
its own runs its tests undisturbed. Where such a package hides ours, the fixtures say so.
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
    """Options of every pytest run; they only say what the fixtures use."""
    group = parser.getgroup("testbed", "optical testbed: drivers and emulated labs")
    group.addoption("--testbed-driver", metavar="NAME", default=None, help="driver of the fixtures device and emulated_lab")
    group.addoption("--testbed-hosts", metavar="N", type=int, default=0, help="hosts of the emulated lab (needs root); default 0")
    parser.addini("testbed_driver", "driver of the fixtures device and emulated_lab", default="polatis-scpi")
    parser.addini("testbed_emulator", "command that serves an emulator of one's own; {port} stands for the TCP port", default="")
    parser.addini("testbed_address", "address of the device behind testbed_emulator", default="tcp://127.0.0.1:{port}")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker that chooses a driver."""
    config.addinivalue_line("markers", "testbed(driver=..., hosts=...): the driver, and the hosts, of this test's emulated lab")


@pytest.fixture(scope="session")
def testbed_labs() -> Iterator[Callable[[str, int], Lab]]:
    """Labs by driver and number of hosts, each started when first asked for and stopped at the end of the session."""
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
    """The command line on the private lab: `testbed("status")` returns the parsed JSON, an error raises `Failed`."""
    from conformance.private import CommandLine

    return CommandLine(emulated_lab.inventory, tmp_path_factory.mktemp("testbed"))


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """The driver, opened in front of its emulator; closed, and the emulator as it was, afterwards.

    Its questions are coroutines, for an event loop of the test's own or for `device.run`.
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
    """`fault("drop-after", on="write", count=1)` arms a fault of the device; all are lifted after the test."""
    truth = device.truth
    yield truth.fault
    truth.mend()


def _check_packages() -> None:
    """End the test where a package of somebody else's has the name of one of ours and comes first on sys.path."""
    import optical_testbed

    if hidden := optical_testbed.shadowed():
        words = ", ".join(f"`{name}` is {place}" for name, place in hidden.items())
        fix = f"rename it, or run these tests from another directory with --import-mode=importlib; wanted {optical_testbed.HOME}"
        pytest.fail(f"packages of optical-testbed are hidden by others of the same name: {words}; {fix}", pytrace=False)


def _wanted(request: pytest.FixtureRequest) -> tuple[str, int]:
    """Driver and hosts: the mark of the test, else the option, else the configuration file."""
    mark = request.node.get_closest_marker("testbed")
    given: dict[str, Any] = dict(mark.kwargs) if mark else {}
    if mark and mark.args:
        given["driver"] = mark.args[0]
    driver = given.get("driver") or request.config.getoption("--testbed-driver") or request.config.getini("testbed_driver")
    return str(driver), int(given.get("hosts", request.config.getoption("--testbed-hosts")))
