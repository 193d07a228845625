"""The command line."""

from tests.cli.conftest import cli

__all__ = ["cli"]
