"""Jobs that misbehave in every way we know, given to the command line: tries and failures per attack.

    python benchmarks/attack_jobs.py [--commands predict,measure,serve] [--only NAME]
        [--places top,build] [--limit 60]

Commands: predict, measure, compare, feed, advise, factors, plan, exchange, crossover, report, train
(simulated), workers (train with real ones), study (a framework of one's own in study run), serve. The page
(serve) is asked for the job and then for a network of the catalogue, which it must still answer.

An attack fails if the command hangs, prints a traceback, ends by a signal, ends with 0 although the job did
not work (or with another code than 0 although it did), says nothing, prints something on standard output
that is no JSON, or leaves a process behind.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

_JOB = """
import torch
from torch import nn
import windtunnel as wt
{top}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        {init}
    def forward(self, x):
        {forward}
        return self.layer(x)

def batch(n):
    {batch}
    return torch.randn(n, 8)

def build(size=8):
    {build}
    return wt.Workload(
        name={name!r},
        examples=32,
        default_batch=4,
        model=Net,
        batch=batch,
        loss=lambda model, x: model(x).square().mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
"""
_FRAMEWORK = """
import dataclasses
from windtunnel.measurement.frameworks import numpy as reference
{top}
def build(problem, task):
    {build}
    built = reference.build(problem, task)
    def step():
        {forward}
        return built.step()
    return dataclasses.replace(built, step=step)
"""
_STUDY = {
    "study.toml": 'title = "T"\nauthors = "A"\nyear = 2020\nsource = "S"\n',
    "figure-1.toml": 'title = "F"\nsource = "S"\njob = "rnn"\n[grid]\nn_rec = [4]\nn_steps = [2]\n'
    '[[case]]\nname = "cpu"\nlabels = ["FILE:hand"]\n',
}
_PLACES = ("top", "build", "init", "forward", "batch")
TRACE_SECONDS = 6.0  # of a job that never ends; others may take long on a loaded machine
_MARK = "WINDTUNNEL_ATTACK"  # is in the environment of all that a try starts
_DAEMON = (
    "import os, time; os.fork() or (os.setsid(), os.fork() and os._exit(0), "
    "os.closerange(0, 100), time.sleep(1000))"
)
_SLEEPS = "lambda self: __import__('time').sleep(1000)"
_SCRIBBLE = (
    "import os; [os.write(n, b'{}' * 99) for n in range(1, 99) if os.path.exists(f'/proc/self/fd/{n}')]"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A line of code, where it stands in a job, and whether the job works nevertheless."""

    name: str
    code: str
    place: str
    works: bool = False
    job: str = "attack"

    def source(self) -> str:
        return _JOB.format(**self._parts(), name=self.job)

    def framework(self) -> str:
        """The same in a framework of one's own."""
        return _FRAMEWORK.format(**self._parts())

    def _parts(self) -> dict[str, str]:
        return {place: self.code if place == self.place else "pass" for place in _PLACES}


_ENDS = {
    "exit(0)": "exit(0)",
    "sys.exit": "import sys; sys.exit('enough')",
    "os._exit(0)": "import os; os._exit(0)",
    "os._exit(3)": "import os; os._exit(3)",
    "segmentation fault": "import ctypes; ctypes.string_at(0)",
    "abort": "import os; os.abort()",
    "SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "SIGKILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSTOP": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "raise": "raise ValueError('no')",
    "BaseException": "raise type('Odd', (BaseException,), {})('odd')",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "str() raises": "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()",
    "message of a megabyte": "raise ValueError('x' * 1000000)",
    "hang": "while True: pass",
    "sleep": "import time; time.sleep(10000)",
    "prints without end": "import os\n{indent}while True: os.write(2, b'x' * 65536)",
    "recursion": "f = lambda: f(); f()",
    "memory": "a = []\n{indent}while True: a.append(bytearray(1 << 26))",
    "one large tensor": "torch.ones(1 << 44)",
    "closes all descriptors": "import os; os.closerange(0, 1000)",
    "raises hostile text": "raise ValueError('\\x1b[2J\\u202e[/bold]\\n\\n=1+1')",
    "str() exits": "raise type('Sly', (Exception,), {'__str__': lambda self: __import__('os')._exit(0)})()",
    "str() ends": "raise type('End', (Exception,), {'__str__': lambda self: exit(0)})()",
    "str() gives no text": "raise type('Odd', (Exception,), {'__str__': lambda self: 7})()",
    "str() hangs": f"raise type('Slow', (Exception,), {{'__str__': {_SLEEPS}}})()",
    "deep recursion": "import sys; sys.setrecursionlimit(10**9); f = lambda: [f()]; f()",
    "group of exceptions": "raise BaseExceptionGroup('two', [ValueError('a'), KeyboardInterrupt()])",
    "writes to all descriptors": _SCRIBBLE,
}
_WORKS = {
    "prints": "print('hello')",
    "prints megabytes": "print('x' * 5000000)",
    "writes to descriptor 1": "import os; os.write(1, b'raw')",
    "closes descriptor 1": "import os; os.close(1)",
    "closes standard output": "import sys; sys.stdout.close()",
    "changes the folder": "import os; os.chdir('/')",
    "installs handlers": "import signal; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]",
    "leaves a thread": "import threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()",
    "leaves a process": "import subprocess; subprocess.Popen(['sleep', '1000'])",
    "leaves a daemon": "import subprocess; subprocess.Popen(['sleep', '61'], start_new_session=True)",
    "makes itself a daemon": _DAEMON,
    "forks": "import os; os.fork()",
    "deletes its file": "import os; os.path.exists(__file__) and os.remove(__file__)",
    "registers atexit": "import atexit, os; atexit.register(os._exit, 7)",
}


def attacks() -> list[Attack]:
    """Each way to end at each place of a job, and each nuisance at two places."""
    found = []
    for name, code in _ENDS.items():
        # A step of any size is traced without its bytes, so a large tensor harms only where it is real.
        for place in _PLACES if name != "one large tensor" else ("top", "build"):
            indent = "" if place == "top" else " " * (8 if place in ("init", "forward") else 4)
            found.append(Attack(name=name, code=code.replace("{indent}", indent), place=place))
    for name, code in _WORKS.items():
        found += [Attack(name=name, code=code, place=place, works=True) for place in ("top", "build")]
    for job in ("[/bold]", "a\x1b[2Jb", "a\u202eb", "a\nb", "=1+1", '" class="', "\ud800"):
        found.append(Attack(name="hostile name", code="pass", place="top", works=True, job=job))
    return found


def try_attack(attack: Attack, command: str, limit: float) -> tuple[str, float]:
    """What is wrong with how the command ended, nothing if it ended well; and its seconds."""
    works = attack.works or (command == "compare" and attack.place not in ("top", "build"))
    works = works and not (attack.name == "deletes its file" and command in _BUILT_AGAIN)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "job.py")
        text = attack.framework() if command == "study" else attack.source()
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        if command == "study":
            for name, body in _STUDY.items():
                Path(folder, name).write_text(body.replace("FILE", str(path)))
        words, mark = _words(command, f"{path}:build", folder), f"{os.getpid()}-{time.monotonic_ns()}"
        ends = attack.name in ("hang", "sleep", "prints without end", "SIGSTOP", "str() hangs")
        variables = {**os.environ, **_variables(folder, TRACE_SECONDS if ends else limit), _MARK: mark}
        start = time.monotonic()
        if command == "serve":
            fault = _fault_of_page(works, f"{path}:build", variables, limit)
            left = _left(mark)
            return fault or (f"left {left} processes" if left else ""), time.monotonic() - start
        try:
            done = subprocess.run(
                [sys.executable, "-m", "windtunnel", *words],
                capture_output=True,
                timeout=limit,
                env=variables,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return f"no end within {limit:.0f} s", time.monotonic() - start
    seconds = time.monotonic() - start
    out, errors = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    fault = _fault(done.returncode, "null" if command == "report" else out, errors, works)
    left = _left(mark)
    return fault or (f"left {left} processes" if left else ""), seconds


def _left(mark: str) -> int:
    """How many processes of a try live on."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = f"{_MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        count += is_ours
    return count


def _variables(folder: str, seconds: float) -> dict[str, str]:
    return {
        "WINDTUNNEL_TRACE_SECONDS": f"{seconds}",
        "WINDTUNNEL_TRACE_MEMORY": "2GiB",
        "WINDTUNNEL_CACHE": "off",
        "WINDTUNNEL_STORE": str(Path(folder, "store.sqlite")),
    }


_BUILT_AGAIN = (
    "measure",
    "compare",
    "serve",
    "train",
    "workers",
    "study",
)  # in several processes: a job must keep its file
_MORE = {
    "factors": ["--only", "batch"],
    "plan": ["--batch", "64"],
    "exchange": ["--batch", "64"],
}


def _words(command: str, job: str, folder: str) -> list[str]:
    if command == "measure":
        return [command, job, "--json", "--quick", "--processes", "1", "--seconds", "0.1", "--timeout", "20"]
    if command == "compare":
        return [command, job, "threads=1", "batch=2", "--json", "--seconds", "3", "--timeout", "20"]
    if command == "report":
        return [command, job, "--on", "h200", "--brief", "--out", str(Path(folder, "report.html"))]
    if command == "crossover":
        return [command, job, "--over", "size=8..9", "--no-measure", "--json"]
    if command == "train":
        return [command, job, "--on", "guide-figure-6", *_training(folder)]
    if command == "workers":
        return ["train", job, *_training(folder)]
    if command == "study":
        return ["study", "run", folder, "--seconds", "0.1", "--json"]
    machine = "8xh100" if command in ("plan", "exchange") else "h200"
    return [command, job, "--on", machine, "--json", *_MORE.get(command, [])]


def _training(folder: str) -> list[str]:
    return ["--workers", "2", "--epochs", "1", "--folder", str(Path(folder, "run")), "--json"]


def _fault_of_page(works: bool, job: str, variables: dict[str, str], limit: float) -> str:
    """What is wrong with the page after it was asked for the job."""
    words = [sys.executable, "-m", "windtunnel", "serve", "--port", "0", "--workers", "1", "--job", job]
    page = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=variables, start_new_session=True)
    assert page.stderr is not None
    try:
        found = re.search(r"http://127\.0\.0\.1:\d+", page.stderr.readline())
        if not found:
            return "does not start"
        code, text = _asked(f"{found[0]}/part/forecast?job=job.py:build&on=h200", limit)
        if code == 202:
            return f"no answer within {limit:.0f} s"
        if code != (200 if works else 422):
            return f"answered {code}: {text[:200]!r}"
        if "\u202e" in text or "\x1b" in text or "<script" in text:
            return "shows hostile text"
        if _asked(f"{found[0]}/part/forecast?job=ffn&on=h200", limit)[0] != 200:
            return "answers no other question"
    except OSError as error:
        return f"does not answer: {error}"
    finally:
        page.send_signal(signal.SIGINT)
        try:
            _, errors = page.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(page.pid, signal.SIGKILL)
            return "does not end"
    return _fault(2 if page.returncode in (0, 130) else page.returncode, "", errors or "none", works=False)


def _asked(address: str, limit: float) -> tuple[int, str]:
    """Ask for a part of the page until it is there, as its script does; the last status and the text."""
    end = time.monotonic() + limit
    while True:
        try:
            with urllib.request.urlopen(address, timeout=limit) as answer:
                code, text = answer.status, answer.read().decode(errors="replace")
        except urllib.error.HTTPError as error:
            code, text = error.code, error.read().decode(errors="replace")
        if code != 202 or time.monotonic() > end:
            return code, text
        time.sleep(0.3)


def _fault(code: int, out: str, errors: str, works: bool) -> str:
    if code < 0:
        return f"ended by signal {-code}"
    if "Traceback (most recent call last)" in errors or "Traceback (most recent call last)" in out:
        return "traceback"
    if any(ord(c) < 32 and c not in "\n\t" for c in errors + out) or "\u202e" in errors + out:
        return "prints control characters"
    if works and code == 0:
        try:
            json.loads(out)
        except ValueError:
            return "standard output is no JSON"
        return ""
    if code != (0 if works else 2):
        return f"ended with {code}: {errors.strip()[:200]}"
    if not errors.strip():
        return "says nothing"
    return f"prints {len(errors):,} characters" if len(errors) > 200_000 else ""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--commands", default="predict")
    parser.add_argument("--only", default="")
    parser.add_argument("--places", default=",".join(_PLACES), help="of the attacks that end a job")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of one try")
    options = parser.parse_args()
    tries, failures, longest = dict[str, int](), dict[str, list[str]](), dict[str, float]()
    for command in options.commands.split(","):
        for attack in attacks():
            if options.only not in ("", attack.name) or attack.place not in options.places.split(","):
                continue
            fault, seconds = try_attack(attack, command, options.limit)
            tries[attack.name] = tries.get(attack.name, 0) + 1
            longest[attack.name] = max(seconds, longest.get(attack.name, 0.0))
            if fault:
                line = f"{command}, {attack.place}: {fault}"
                failures.setdefault(attack.name, []).append(line)
                print(f"{attack.name}: {line}", file=sys.stderr, flush=True)
    print(f"{'attack':<26}{'tries':>6}{'failures':>10}{'longest s':>11}")
    for name, count in tries.items():
        print(f"{name:<26}{count:>6}{len(failures.get(name, [])):>10}{longest[name]:>11.1f}")
        for line in failures.get(name, []):
            print(f"    {line}")
    print(f"{'all':<26}{sum(tries.values()):>6}{sum(map(len, failures.values())):>10}")


if __name__ == "__main__":
    main()
