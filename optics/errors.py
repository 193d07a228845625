"""Every exception that this project raises on purpose.

The class is the kind of fault; `code` is stable and printed, `exit_code` is the exit status of the
command. The message names the device or host, what was expected, what was observed and, if there is
one, the device's own message; `hint` says what to do next.
"""

from __future__ import annotations


class TestbedError(Exception):
    """Root of all errors raised on purpose. `hint` is the next command or edit for the operator."""

    __test__ = False  # not a pytest class, despite its name
    code = "E-UNEXPECTED"
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def line(self) -> str:
        """The first line of the message: what of it fits into a table, a note or another
        message.
        """
        return first_line(self)


class Usage(TestbedError, ValueError):
    """The command line or a call is wrong: an option, an argument or an environment variable, which
    the message names.
    """

    code = "E-USAGE"
    exit_code = 2


class BadFile(TestbedError, ValueError):
    """The user's plan or inventory is wrong. `problems` holds every one of them as
    `file:line:col: where: what`.
    """

    code = "E-BAD-FILE"
    exit_code = 3

    def __init__(self, problems: list[str], *, hint: str = "") -> None:
        super().__init__("\n".join(problems), hint=hint)
        self.problems = problems


class Infeasible(TestbedError, ValueError):
    """The plan is well formed but this lab cannot carry it."""

    code = "E-INFEASIBLE"
    exit_code = 3


class Locked(TestbedError):
    """Another operator or process is changing the lab now."""

    code = "E-LOCKED"
    exit_code = 4


class Unreachable(TestbedError, ConnectionError):
    """A device or host could not be reached; nothing was sent to it."""

    code = "E-UNREACHABLE"
    exit_code = 5


class Garbled(TestbedError, ValueError):
    """A device or host sent an answer that its protocol does not allow; the message quotes it."""

    code = "E-GARBLED"
    exit_code = 5


class TimedOut(TestbedError, TimeoutError):
    """No answer, or not the expected one, within the deadline; the message names the request and
    the last value seen.
    """

    code = "E-TIMED-OUT"
    exit_code = 5


class Refused(TestbedError):
    """The device or host refused, in its own words; nothing may be assumed done."""

    code = "E-REFUSED"
    exit_code = 7


class Interlock(TestbedError):
    """The program itself refuses: foreign circuit on a wanted port, tag-out, power limit."""

    code = "E-INTERLOCK"
    exit_code = 9


class NotVerified(TestbedError):
    """The change was carried out but a rung of the verification did not pass."""

    code = "E-NOT-VERIFIED"
    exit_code = 7


class ChangeFailed(TestbedError):
    """A change stopped partway; the message lists the steps done, those not done, and how to undo
    them.
    """

    code = "E-CHANGE-FAILED"
    exit_code = 7


class RolledBack(TestbedError):
    """A change failed and was rolled back: devices and hosts were read and are as before."""

    code = "E-ROLLED-BACK"
    exit_code = 6


class HandsNeeded(TestbedError):
    """A change failed and could not be rolled back completely. `left`: the remaining manual steps,
    one item each.
    """

    code = "E-HANDS-NEEDED"
    exit_code = 7

    def __init__(self, message: str, left: tuple[str, ...] = (), *, hint: str = "") -> None:
        listed = "\n".join(f"  {number}. {what}" for number, what in enumerate(left, 1))
        super().__init__(f"{message}\n{listed}" if left else message, hint=hint)
        self.left = left


class Interrupted(TestbedError):
    """The operator stopped the command; the message states what became of the steps it had
    begun.
    """

    code = "E-INTERRUPTED"
    exit_code = 130


class Untrusted(TestbedError):
    """Another user of this machine has written, or could change, data that the command would trust;
    nothing was done.
    """

    code = "E-UNTRUSTED"
    exit_code = 2


class StoreFailed(TestbedError):
    """A change cannot be recorded (full disk, damaged or newer store), so nothing more is done."""

    code = "E-STORE"
    exit_code = 2


class BadPlugin(TestbedError):
    """A topology generator or schedule of another distribution failed, or answered what cannot be
    used; nothing was changed.

    The message names the object, its distribution and its version.
    """

    code = "E-PLUGIN"
    exit_code = 3


class Missing(TestbedError):
    """This machine lacks something the command needs (a program, a kernel feature, a right); the
    hint states how to get it.
    """

    code = "E-MISSING"
    exit_code = 2


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def unplanned(error: BaseException) -> str:
    """Return the first line of an error that may be of any class; before it the name of a class
    that is none of the above.
    """
    return (
        first_line(error)
        if isinstance(error, TestbedError)
        else f"{type(error).__name__}: {first_line(error)}"
    )
