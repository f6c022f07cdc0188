"""A command in a pseudo-terminal: read what it prints, answer its questions, press keys."""

from __future__ import annotations

import fcntl
import json
import os
import select
import struct
import termios
import time
from types import TracebackType

from conftest import _server

CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """Starts `windtunnel` with these words in a terminal of 80 columns; used in a `with` statement."""

    def __init__(self, *words: str, columns: int = 80, **variables: str) -> None:
        self.master, self.slave = os.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self.server = _server()
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        request = {
            "words": words,
            "environment": {**environment, **variables},
            "folder": os.getcwd(),
            "terminal": os.ttyname(self.slave),
        }
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        self.answers = self.server.stdout
        self.code: int | None = None
        self.text = ""  # everything so far
        self.seen = 0  # how much of it was asked for

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.code is None:  # the test failed: the next one gets a new server
            self.server.kill()
            _server.cache_clear()
        os.close(self.master)
        os.close(self.slave)

    def wait_for(self, text: str, seconds: float = 240) -> str:
        """What is printed up to this text."""
        limit = time.monotonic() + seconds
        while text not in self.text[self.seen :]:
            assert time.monotonic() < limit and self._read(), f"{text!r} never came after:\n{self.text}"
        start, self.seen = self.seen, self.text.index(text, self.seen) + len(text)
        return self.text[start : self.seen]

    def type(self, line: str) -> None:
        os.write(self.master, f"{line}\n".encode())

    def press(self, key: str) -> None:
        os.write(self.master, key.encode())

    def end(self, seconds: float = 240, key: str = "") -> tuple[int, str]:
        """The exit code and the rest of what is printed; the key, if any, is pressed again every two seconds.

        Python's `input` misses a Ctrl-C between its prompt and its read. A person presses it again.
        """
        limit = time.monotonic() + seconds
        again = time.monotonic() + 2
        while self._read():
            assert time.monotonic() < limit, f"it never ended:\n{self.text}"
            if key and self.code is None and time.monotonic() > again:
                self.press(key)
                again = time.monotonic() + 2
        assert self.code is not None
        rest, self.seen = self.text[self.seen :], len(self.text)
        return self.code, rest

    def _read(self) -> bool:
        """Reads some output; false when the command has ended and all of it is read."""
        ready, _, _ = select.select(
            [self.master, *([self.answers] if self.code is None else [])], [], [], 0.2
        )
        if self.master in ready:
            self.text += os.read(self.master, 65536).decode(errors="replace").replace("\r\n", "\n")
            return True
        if self.answers in ready:
            self.code = int(self.answers.readline())
            return True
        return self.code is None
