"""The command `windtunnel`."""

import os
import sys

from windtunnel import folders
from windtunnel.isolation import early


def main() -> None:
    open_standard_files()
    folders.keep_compiler_cache()
    early.start(sys.argv[1:])
    from windtunnel import cli

    cli.main()


def open_standard_files() -> None:
    """Open closed standard streams on the null device. Otherwise the next file that is opened would get their
    number, and printed text would go into it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  open to the end


if __name__ == "__main__":
    main()
