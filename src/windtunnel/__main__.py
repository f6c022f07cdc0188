"""The command `windtunnel`."""

import sys

from windtunnel import folders
from windtunnel.isolation import early


def main() -> None:
    folders.keep_compiler_cache()
    early.start(sys.argv[1:])
    from windtunnel import cli

    cli.main()


if __name__ == "__main__":
    main()
