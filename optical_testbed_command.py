"""The entry point of the command `testbed`. Its name is the distribution's: no other module hides
it.
"""

import sys
from contextlib import suppress

from optical_testbed_home import own_first


def main() -> None:
    """Run the command line, of this project's packages."""
    own_first()
    if sys.argv[1:] in ([], ["--help"]):
        # without typer, whose import takes longer than all else
        from orchestrator.cli.listing import help_text

        with suppress(OSError):  # which the command below reports
            print(help_text(), flush=True)
            return
    from orchestrator.cli.main import main as command

    command()
