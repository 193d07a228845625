"""The entry point of the command `testbed`. Its name is the distribution's: no other module hides it."""

from optical_testbed_home import own_first


def main() -> None:
    """Run the command line, of this project's packages."""
    own_first()
    from orchestrator.cli.main import main as command

    command()
