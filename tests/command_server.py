"""Runs `windtunnel` commands in forks of one process that has imported PyTorch, which takes seconds.

Each command still has its own process, exit code, standard output and error. A request is a line of JSON on
standard input: words, environment, folder, and the files for both outputs, or a terminal for all three
streams. The answer is the exit code.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import signal
import sys
import termios
from typing import Any, NoReturn

SECONDS = 900  # unless the request says otherwise
# What a command imports later anyway. None of them starts a thread, which a fork would lose.
PRELOADED = ("torch", "torch._dynamo", "torch.distributed", "windtunnel.cli", "windtunnel.trace.record")


def serve() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(json.loads(line))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, flush=True)


def run(request: dict[str, Any]) -> NoReturn:
    signal.alarm(request.get("seconds", SECONDS))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if "terminal" in request:
        use_terminal(request["terminal"])
    else:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["windtunnel", *request["words"]]
    code: object = 1
    try:
        from windtunnel.cli import main

        main()
        code = 0
    except SystemExit as error:
        code = error.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def use_terminal(name: str) -> None:
    """Makes the terminal that of a new session, so that its Ctrl-C reaches this process alone.

    A shell that starts the tests in the background lets them ignore Ctrl-C; a command in a terminal does not.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    terminal = os.open(name, os.O_RDWR)
    for number in range(3):
        os.dup2(terminal, number)
    with contextlib.suppress(OSError):  # opening it has done this already, unless another session had it
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 1)
    os.tcsetpgrp(terminal, os.getpgrp())
    # The old streams belong to the server's pipes.
    sys.stdin = os.fdopen(0)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))


if __name__ == "__main__":
    serve()
