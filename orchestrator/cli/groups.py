"""The classes of commands: `testbed` itself, families of verbs, and verbs, whose help fits on a
screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer import Typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from orchestrator.cli.listing import COMMON_OPTIONS, VERBS, help_text
from orchestrator.cli.moved import refuse_moved
from orchestrator.cli.pages import with_pages

TAKE_A_VALUE = ("--inventory", "-i", "--timeout", "--as")
"""The options of all verbs that are followed by a value."""
SCREEN = 40
"""Lines of a verb's help, unless `--all` is given with `--help`."""
ALL = "all"
"""Key of the root context's object: the help is to have all options."""


def first_word(argv: Sequence[str]) -> int | None:
    """The place of the first word behind common options, None if there is none."""
    place = 0
    while place < len(argv) and argv[place] != "--help":
        if not argv[place].startswith("-"):
            return place
        place += 2 if argv[place] in TAKE_A_VALUE else 1
    return None


class Root(TyperGroup):
    """The command `testbed`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(help_text())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        refuse_moved(args)
        return super().resolve_command(ctx, args)


class Family(TyperGroup):
    """Verbs of one subject. The options of all verbs may also come before the verb's name, as they
    may before the family's.
    """

    default = ""
    """The verb that is meant where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # A shell that completes `testbed run` wants the verbs, not the arguments of `list`.
        return super().parse_args(ctx, args if ctx.resilient_parsing else self.ordered(args))

    def ordered(self, args: list[str]) -> list[str]:
        """The arguments with the verb first."""
        place = first_word(args)
        if place is not None and args[place] in self.commands:
            return [args[place], *args[:place], *args[place + 1 :]]
        return (
            [self.default, *args]
            if self.default and place != 0 and args[:1] != ["--help"]
            else args
        )


class Listed(Family):
    """A family that lists where no verb is named: `testbed run` is `testbed run list`."""

    default = "list"


class Verb(TyperCommand):
    """A verb. Where its help is longer than a screen, the last options, and those of all verbs,
    show with `--help --all`.
    """

    def get_help(self, ctx: Any) -> str:
        return with_pages(self._on_a_screen(ctx))

    def _on_a_screen(self, ctx: Any) -> str:
        text = super().get_help(ctx)
        if len(text.splitlines()) <= SCREEN or (ctx.find_root().obj or {}).get(ALL):
            return text
        options = [param for param in self.params if isinstance(param, TyperOption)]
        common = [param for param in options if param.name in COMMON_OPTIONS]
        rest = [param for param in reversed(options) if param.name not in COMMON_OPTIONS]
        left_out = 0
        try:
            for param in [*common, *rest]:
                param.hidden, left_out = True, left_out + 1
                text = super().get_help(ctx)
                if left_out >= len(common) and len(text.splitlines()) <= SCREEN - 2:
                    break
        finally:
            for param in options:
                param.hidden = False
        return f"{text}\n\n  {left_out} more options: {ctx.command_path} --help --all"


def family(name: str, kind: type[Family] = Family, short: str = "") -> Typer:
    """The app of a family; short: what it is for, unless it is in the list of verbs."""
    return Typer(
        name=name,
        cls=kind,
        help=short or VERBS[name][1],
        no_args_is_help=not kind.default,
        rich_markup_mode=None,
        add_completion=False,
    )
