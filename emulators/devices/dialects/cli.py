"""The common part of interactive command lines: echo, line ends, prompts, logins, and one command
in place of a shell.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TypeVar

from emulators.devices.dialects.base import Dialect, Session
from emulators.optics.plant import Plant

State = TypeVar("State")
EOL = b"\r\n"
PASSES = frozenset({"ssh"})  # the transport has asked for name and password already


@dataclass(slots=True)
class Screen:
    """The state of one session's terminal, as far as the device needs it.

    cursor: "start" of a line, behind the "prompt", or "mid"dle of a line. stage: "user" and
    "password" while logging in, "shell". once: started with a single command (ssh HOST COMMAND): no
    echo, no prompt, and the session ends with the command.
    """

    stage: str
    cursor: str = "start"
    once: bool = False
    typed: bytes = b""
    after_cr: bool = False
    name: str = ""


class CliDialect(Dialect[State]):
    """A shell with echo. `answer` returns a command's output, lines ended by "\\n"; the rest is
    done here.

    username None: every login is taken. Three wrong passwords end the session (U).
    """

    user_prompt, password_prompt = b"login: ", b"Password: "

    def __init__(
        self,
        plant: Plant,
        *,
        username: str | None = None,
        password: str | None = None,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(plant, seed=seed, idle_s=idle_s, boot_s=boot_s)
        self.username, self.password = username, password
        self.screens: dict[Session, Screen] = {}
        self._wrong: dict[Session, int] = {}

    # ---- defined by a family

    @abstractmethod
    def prompt(self, session: Session) -> str:
        """Return the prompt."""

    @abstractmethod
    def answer(self, session: Session, command: str, now: float) -> str:
        """Do `command` and return its output, each line ended by a newline."""

    def welcome(self) -> str:
        """Return what is printed once, before the first prompt."""
        return ""

    def denied(self) -> str:
        """Return the answer to a wrong name or password."""
        return "Login incorrect\n"

    def polish(self, session: Session, output: bytes, now: float) -> bytes:
        """Last change to what is printed: output and prompt."""
        return output

    # ---- the session

    def open(self, now: float) -> Session | None:
        session = super().open(now)
        if session is None:
            return None
        asks = self.transport not in PASSES and self.username is not None
        self.screens[session] = Screen("user" if asks else "shell")
        if asks:
            self.send(session, now, EOL + self.user_prompt)
            self.screens[session].cursor = "mid"
        else:
            self.enter(session, self.username or "admin", now)
            self.send(session, now, self._text(self.welcome()) + self._prompt(session))
        return session

    def close(self, session: Session) -> None:
        super().close(session)
        self.screens.pop(session, None)
        self._wrong.pop(session, None)

    def run_once(self, session: Session, command: str, now: float) -> None:
        """Run `command` in place of a shell, as `ssh HOST COMMAND` asks: its output alone, then the
        session ends.
        """
        screen = self.screens.get(session)
        if screen is None or session.closed:
            return
        # the shell's welcome is not for this client
        self._out = [out for out in self._out if out[0] is not session]
        screen.once, screen.stage, screen.cursor = True, "shell", "start"
        self.receive(session, command.encode("utf-8", "replace") + b"\n", now)

    def split(self, session: Session) -> list[str]:
        screen = self.screens[session]
        data = session.buffer[len(screen.typed) :]  # what comes before it has been echoed
        lines: list[str] = []
        echo = bytearray()
        for byte in data:
            after_cr, screen.after_cr = screen.after_cr, byte == 13
            if byte in (10, 13):
                if byte == 10 and after_cr:
                    continue
                lines.append(screen.typed.decode("latin-1").strip())
                screen.typed, screen.cursor = b"", "start"
                echo += EOL
            elif byte in (8, 127):
                if screen.typed:
                    screen.typed = screen.typed[:-1]
                    echo += b"\b \b" if screen.stage != "password" else b""
            elif byte == 3:
                screen.typed = b""
                lines.append("")
                echo += b"^C" + EOL
            elif byte >= 32:
                screen.typed += bytes((byte,))
                screen.cursor = "mid"
                if screen.stage != "password":
                    echo.append(byte)
        session.buffer = screen.typed
        if echo and not screen.once:
            self.send(session, session.last_s, bytes(echo))
        return lines

    def execute(self, session: Session, command: str, now: float) -> bytes:
        screen = self.screens[session]
        if screen.stage != "shell":
            return self._login(session, screen, command, now)
        if command in ("exit", "logout", "quit"):
            self._hang_up(session, now)
            return b""
        return self._printed(session, self.answer(session, command, now) if command else "", now)

    def _run(self, session: Session, now: float) -> None:
        super()._run(session, now)
        self._end_once(session, now)

    def working(self, session: Session) -> bool:
        """Return whether the answer to the session's last command is still to come by itself."""
        return False

    # ---- inside

    def _end_once(self, session: Session, now: float) -> None:
        """End a session that was for one command, behind whatever is still to be sent to it."""
        screen = self.screens.get(session)
        if (
            screen is not None
            and screen.once
            and not session.queue
            and not session.held
            and not self.working(session)
        ):
            times = [at for whose, at, _ in self._out if whose is session]
            self.send(session, max([now, *times]), None)
            self.close(session)

    def _printed(self, session: Session, output: str, now: float) -> bytes:
        screen = self.screens.get(session)
        if screen is None:
            return b""
        if screen.once:
            return output.encode("latin-1", "replace")
        return self.polish(session, self._text(output) + self._prompt(session), now)

    def _prompt(self, session: Session) -> bytes:
        self.screens[session].cursor = "prompt"
        return self.prompt(session).encode("latin-1")

    def _text(self, text: str) -> bytes:
        return text.replace("\n", "\r\n").encode("latin-1", "replace")

    def _login(self, session: Session, screen: Screen, typed: str, now: float) -> bytes:
        screen.cursor = "mid"
        if screen.stage == "user":
            if not typed:
                return self.user_prompt
            screen.name, screen.stage = typed, "password"
            return self.password_prompt
        if screen.name == self.username and self.password in (None, typed):
            screen.stage = "shell"
            self.enter(session, screen.name, now)
            return self._text(self.welcome()) + self._prompt(session)
        screen.stage = "user"
        self._wrong[session] = self._wrong.get(session, 0) + 1
        if self._wrong[session] >= 3:
            self._hang_up(session, now)
            return b""
        return self._text(self.denied()) + EOL + self.user_prompt
