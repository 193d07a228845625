import sys

from emulators.generate.command import main

if __name__ == "__main__":
    sys.exit(main())
