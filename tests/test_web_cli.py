"""windtunnel serve at the command line: what it needs, where it listens, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from conftest import run

from windtunnel.cli import serve
from windtunnel.errors import Unavailable


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="starlette") as caught:
        serve._require_web()
    assert "pip install 'windtunnel[web]'" in caught.value.hint


def test_mistakes_end_before_anything_is_served(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for words, said in (
            (("--port", port), "Use another port"),
            (("--port", "99999"), "from 1 to 65535"),
            (("--job", "nosuch.py:build"), "no file"),
            (("--rows", "nosuch.json"), "no such file"),
            (("--study", str(tmp_path)), "study"),
            (("--host", "256.1.1.1"), "Nothing can be served"),
        ):
            done = run("serve", *words, folder=tmp_path)
            assert done.returncode == 2, words
            assert said in done.stderr, words


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_only_addresses_of_this_machine_are_loopback(host: str, loopback: bool) -> None:
    assert serve.is_loopback(host) is loopback


def test_the_page_starts_answers_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    environment = {**os.environ, "WINDTUNNEL_CACHE": "off", "WINDTUNNEL_STORE": str(tmp_path / "s.sqlite")}
    process = subprocess.Popen(
        [sys.executable, "-m", "windtunnel", "serve", "--port", "0", "--workers", "1"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stderr.readline())
        assert found
        with urllib.request.urlopen(f"{found[0]}/machines/h200", timeout=300) as answer:
            assert answer.status == 200
            assert answer.headers["server"] is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) in (0, 130)
        assert "Traceback" not in process.stderr.read()
        assert not (tmp_path / "s.sqlite").exists()
    finally:
        process.kill()
        process.wait()
