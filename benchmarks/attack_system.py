"""Every command that writes: on a disk without room, and killed at random moments. Tries and failures.

disk    No file may grow beyond a few bytes (RLIMIT_FSIZE), as on a disk that is full. The command must end
        with 2 and a message, or with 0 if it needs no more room; a file that was there before is as it was;
        no temporary file stays.
kill    SIGKILL to the command at a random moment. All that it started must end; what it left in the system's
        temporary folder the same command removes when it runs again, which must end with 0.

    python benchmarks/attack_system.py --attack disk,kill [--only "study run"] [--tries 3] [--seed 1]
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

MARK = "WINDTUNNEL_ATTACK"  # is in the environment of all that a try starts
SIZES = "0,300,5000,40000"  # bytes to which a file may grow
_LIMIT_SECONDS = 300.0
_END_SECONDS = 15.0  # for what a killed command has started to end
_OLD = b"what was there before\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that writes. `outputs` are files that it replaces whole; `prepare` makes its inputs."""

    words: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    prepare: Callable[[Path], None] = lambda folder: None
    codes: tuple[int, ...] = (0,)  # with which it ends where nothing is in its way
    variables: Mapping[str, str] = field(default_factory=dict)


def _flowers(folder: Path) -> None:
    rows = (f"{n % 7},{n % 5},{'a' if n % 7 > 3 else 'b'}" for n in range(120))
    (folder / "flowers.csv").write_text("\n".join(["x,y,kind", *rows]))


def _study(folder: Path) -> None:
    own = folder / "mine"
    own.mkdir(exist_ok=True)
    (own / "study.toml").write_text('title = "T"\nauthors = "A"\nyear = 2020\nsource = "S"\n')
    (own / "figure-1.toml").write_text(
        'title = "F"\nsource = "S"\njob = "rnn"\n[grid]\nn_rec = [4, 5]\nn_steps = [2]\n'
        '[[case]]\nname = "cpu"\nlabels = ["torch:loop"]\n'
    )


def _measured(folder: Path) -> None:
    _study(folder)
    _run_whole(_COMMANDS["study run"].words, folder)


def _damaged(folder: Path) -> None:
    import sqlite3

    _measured(folder)
    db = sqlite3.connect(folder / "home" / "store.sqlite")
    db.execute("DROP TRIGGER IF EXISTS cell_changed")
    db.execute("UPDATE cell SET finished = 'x' WHERE id = 1")
    db.commit()
    db.close()


def _climbed(folder: Path) -> None:
    _flowers(folder)
    _run_whole(_COMMANDS["advise --data"].words, folder)


_SHORT = ("--seconds", "0.05")
_COMMANDS: dict[str, Command] = {
    "predict": Command(words=("predict", "ffn", "--on", "h200", "--timeline", "t.json"), outputs=("t.json",)),
    "measure": Command(words=("measure", "ffn", "--quick", "--processes", "1", *_SHORT)),
    "compare": Command(words=("compare", "ffn", "threads=1", "batch=2", "--seconds", "1")),
    "advise": Command(words=("advise", "ffn", "--on", "h200", "--apply", "p.toml"), outputs=("p.toml",)),
    "advise --data": Command(
        words=("advise", "--data", "flowers.csv", "--target", "kind", "--time", "1s", "--to", "climbed"),
        prepare=_flowers,
    ),
    "plan": Command(words=("plan", "ffn", "--on", "2xh100", "--batch", "64", "--to", "plans")),
    "feed": Command(words=("feed", "ffn", "--on", "h200")),
    "factors": Command(
        words=("factors", "ffn", "--on", "h200", "--only", "batch", "--plot", "f.svg"), outputs=("f.svg",)
    ),
    "report": Command(
        words=("report", "ffn", "--on", "h200", "--brief", "--out", "r.html"), outputs=("r.html",)
    ),
    "crossover": Command(
        words=("crossover", "rnn", "--over", "n_rec=8..16", "--no-measure", "--plot", "c.svg"),
        outputs=("c.svg",),
    ),
    "train": Command(
        words=(
            "train",
            "ffn",
            "--on",
            "guide-figure-6",
            "--epochs",
            "1",
            "--folder",
            "run",
            "--plot",
            "l.svg",
        ),
        outputs=("l.svg",),
    ),
    "train, real": Command(words=("train", "ffn", "--epochs", "1", "--folder", "run")),
    "network train": Command(words=("network", "train", "ffn", "--epochs", "2", "--folder", "run")),
    "network use": Command(
        words=("network", "use", "climbed", "--data", "flowers.csv", "--to", "answers.csv"),
        outputs=("answers.csv",),
        prepare=_climbed,
    ),
    "study run": Command(words=("study", "run", "mine", "--quick", *_SHORT), prepare=_study),
    "study report": Command(
        words=("study", "report", "mine", "--out", "s.html"), outputs=("s.html",), prepare=_measured
    ),
    "study export": Command(
        words=("study", "export", "mine", "--out", "s.csv"), outputs=("s.csv",), prepare=_measured
    ),
    "study export --samples": Command(
        words=("study", "export", "mine", "--samples", "--out", "s.jsonl"),
        outputs=("s.jsonl",),
        prepare=_measured,
    ),
    "store repair": Command(words=("store", "repair"), prepare=_damaged),
    "machine probe": Command(
        words=("machine", "probe", "--seconds", "10", "--on", "cpu", "--to", "p.json.gz")
    ),
    "machine probe --host": Command(words=("machine", "probe", "--host", "--on", "cpu")),
}


def _variables(folder: Path, mark: str = "none") -> dict[str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    own = {"WINDTUNNEL_HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), MARK: mark}
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("WINDTUNNEL_") or name == "WINDTUNNEL_FRAMEWORKS"
    }
    return {**inherited, **own}


def _line(words: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "windtunnel", *words]


def _run_whole(words: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _line(words),
        cwd=folder,
        env=_variables(folder),
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )


# A disk without room


def _try_disk(command: Command, size: int, folder: Path) -> str:
    """What is wrong with how a command ended whose files may have so many bytes."""
    command.prepare(folder)
    for name in command.outputs:
        (folder / name).write_bytes(_OLD)
    before = _files(folder)
    try:
        done = subprocess.run(
            _line(command.words),
            cwd=folder,
            env={**_variables(folder), "WINDTUNNEL_CACHE": "off"},
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "no end in time"
    fault = _fault_of(done, (*command.codes, 2))
    for name in command.outputs:
        is_old = (folder / name).exists() and (folder / name).read_bytes() == _OLD
        if done.returncode and not is_old:
            fault = fault or f"{name} is not as it was"
        if not done.returncode and is_old:
            fault = fault or f"ended with 0, and {name} was not written"
    partial = [name for name in _files(folder) if ".part-" in name and name not in before]
    return fault or (f"left {partial}" if partial else "") or _left_in_tmp(folder)


# A kill


def _try_kill(command: Command, share: float, folder: Path) -> str:
    """What is wrong after a kill when so much of its usual time was over."""
    command.prepare(folder)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place)
        command.prepare(whole)
        start = time.monotonic()
        done = _run_whole(command.words, whole)
        if done.returncode not in command.codes:
            return f"does not run at all: {done.stderr.strip()[-200:]}"
    usual, mark = time.monotonic() - start, f"{os.getpid()}-{time.monotonic_ns()}"
    child = subprocess.Popen(
        _line(command.words),
        cwd=folder,
        env=_variables(folder, mark),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(usual * share)
    child.send_signal(signal.SIGKILL)
    child.wait()
    end = time.monotonic() + _END_SECONDS
    while _living(mark) and time.monotonic() < end:
        time.sleep(0.1)
    orphans = _living(mark)
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)
    if orphans:
        return f"left {len(orphans)} processes"
    try:
        again = _run_whole(command.words, folder)
    except subprocess.TimeoutExpired:
        return "no end of the run after it"
    return _fault_of(again, command.codes) or _left_in_tmp(folder)


def _living(mark: str) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
        except OSError:
            continue
    return found


def _fault_of(done: subprocess.CompletedProcess[str], codes: tuple[int, ...]) -> str:
    last = (done.stderr.strip().splitlines() or [""])[-1][:160]
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}"
    if "Traceback (most recent call last)" in done.stderr + done.stdout:
        return f"traceback: {last}"
    if done.returncode not in codes:
        return f"ended with {done.returncode}: {last}"
    return "says nothing" if done.returncode and not done.stderr.strip() else ""


def _left_in_tmp(folder: Path) -> str:
    left = sorted(path.name for path in (folder / "tmp").iterdir())
    return f"left in the temporary folder: {', '.join(left[:3])}" if left else ""


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attack", default="disk,kill")
    parser.add_argument("--only", default="", help="commands, with commas")
    parser.add_argument("--tries", type=int, default=2, help="kills of each command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sizes", default=SIZES, help="most bytes of a file, with commas")
    options = parser.parse_args()
    rng, failed = random.Random(options.seed), 0
    print(f"{'command':<26}{'attack':<8}{'tries':>6}{'failures':>10}")
    for name, command in _COMMANDS.items():
        if options.only and name not in options.only.split(","):
            continue
        for attack in options.attack.split(","):
            strengths = [rng.uniform(0.05, 1.0) for _ in range(options.tries)]
            if attack == "disk":
                strengths = list(map(float, options.sizes.split(",")))
            faults = []
            for strength in strengths:
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
                    fault = (
                        _try_disk(command, int(strength), Path(place))
                        if attack == "disk"
                        else _try_kill(command, float(strength), Path(place))
                    )
                faults += [f"    {strength:.2f}: {fault}"] if fault else []
            failed += len(faults)
            print(f"{name:<26}{attack:<8}{len(strengths):>6}{len(faults):>10}", flush=True)
            print("".join(f"{line}\n" for line in faults), end="", flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
