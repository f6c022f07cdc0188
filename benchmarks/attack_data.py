"""Damage files of every kind at random and count what the program says.

For each kind of file, a good one is written, damaged in a random way, and read as the commands read it:

noticed    an error of windtunnel, which says what is wrong
told       a note that the file is of an earlier version without checksums, so that no one can tell
same       what was read equals what was written: the damage hit nothing that counts
different  what was read differs, and nobody said so. Never right for a file that windtunnel wrote.
           A machine or study file is written by people: one that reads differently is just another file.
           There it counts what gives no finite forecast.
traceback  an error that is not one of windtunnel's

    python benchmarks/attack_data.py --tries 200
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import time
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from windtunnel.errors import Note, WindtunnelError

OUTCOMES = ("noticed", "told", "same", "different", "traceback")
Damage = Callable[[random.Random, bytes], bytes]
LIMIT_SECONDS = 30  # of a processor, for one try
NESTED = "nested lists"  # is written as 2,000 lists within each other


# Damage to bytes


def flip(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def zero(rng: random.Random, data: bytes) -> bytes:
    size = min(rng.choice((16, 64, 512, 4096)), len(data))
    place = rng.randrange(len(data) - size + 1)
    return data[:place] + bytes(size) + data[place + size :]


def junk(rng: random.Random, data: bytes) -> bytes:
    size = min(rng.choice((1, 4, 32, 512)), len(data))
    place = rng.randrange(len(data) - size + 1)
    return data[:place] + rng.randbytes(size) + data[place + size :]


def cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.choice((0, rng.randrange(len(data))))]


def digit(rng: random.Random, data: bytes) -> bytes:
    """Another digit in place of one: the change that a reader notices least."""
    places = [place for place, byte in enumerate(data[:200_000]) if 48 <= byte <= 57]
    if not places:
        return flip(rng, data)
    place = rng.choice(places)
    return data[:place] + str((data[place] - 47) % 10).encode() + data[place + 1 :]


BYTES: tuple[Damage, ...] = (flip, zero, junk, cut, digit)


# Damage to values


def hostile(rng: random.Random) -> Any:
    """A value that nobody means."""
    return rng.choice(
        [
            *(
                0,
                -1,
                1e-308,
                1e308,
                5e-324,
                -0.0,
                2**63,
                10**30,
                True,
                None,
                "",
                "x" * 10_000,
                "1e-308",
                "1e400",
            ),
            *(
                "9" * 5_000,
                "NaN",
                "0",
                "1e-320 B/s",
                [],
                {},
                [1, 2],
                {"a": 1},
                float("nan"),
                float("inf"),
                NESTED,
            ),
            *("\ud800", "\x00", "-5", "../../etc/passwd"),
        ]
    )


def places_of(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield (*path, key)
            yield from places_of(value, (*path, key))


def worsen(rng: random.Random, data: dict[str, Any]) -> dict[str, Any]:
    """One to three values of plain data replaced, renamed or removed."""
    changed = copy.deepcopy(data)
    for _ in range(rng.randint(1, 3)):
        places = list(places_of(changed))
        if not places:
            return changed
        *above, last = rng.choice(places)
        table = changed
        for key in above:
            table = table[key]
        how = rng.random()
        if how < 0.65:
            table[last] = hostile(rng)
        elif how < 0.9:
            del table[last]
        elif isinstance(table, dict):
            table[f"{last}x"] = table.pop(last)
    return changed


def as_json(data: object) -> str:
    """JSON also of lists that are nested more deeply than the encoder goes, and of very long numbers."""
    if isinstance(data, dict):
        return "{" + ",\n".join(f"{json.dumps(key)}: {as_json(value)}" for key, value in data.items()) + "}"
    if isinstance(data, list):
        return "[" + ", ".join(map(as_json, data)) + "]"
    if data == NESTED:
        return "[" * 2_000 + "]" * 2_000
    if isinstance(data, str) and data.isdigit() and len(data) > 4_300:
        return data
    return json.dumps(data)


# What is attacked: each gives a reader of a path, and a writer of damaged files


def judged(forecast: Any) -> str:
    """Whether a forecast has finite times and prints itself."""
    str(forecast)
    numbers = (forecast.step_seconds, forecast.low_seconds, forecast.high_seconds)
    good = all(math.isfinite(n) and n > 0 for n in numbers) and numbers[1] <= numbers[2]
    return "finite" if good else repr(numbers)


class Target:
    """One kind of file. `read` returns what a command would use, as text that can be compared."""

    name = ""
    strict = True  # whether reading something else than was written is wrong

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self) -> Path:
        raise NotImplementedError

    def read(self, path: Path) -> str:
        raise NotImplementedError

    def damaged(self, rng: random.Random, good: Path, bad: Path) -> str:
        """Write a damaged copy; says how it was damaged."""
        how = rng.choice(BYTES)
        bad.write_bytes(how(rng, good.read_bytes()))
        return how.__name__


class StoreFile(Target):
    name = "store"

    def write(self) -> Path:
        from windtunnel.measurement.report import PeakMemory, ProcessReport, Ready, ReferenceLoop, Samples
        from windtunnel.measurement.steady import interval
        from windtunnel.measurement.store import NewCell, Settled, Store
        from windtunnel.measurement.summary import summarise

        self.study = small_study(self.folder / "mine")
        path, rng = self.folder / "good.sqlite", random.Random(1)
        store = Store(path)
        tasks = cells_as_text(self.study)
        facts = json.dumps(
            {"cpu": "a CPU", "cpus": 4, "cores": 4, "versions": {"torch": "2.13"}}, sort_keys=True
        )
        new = [
            NewCell(key=f"{i:016x}", figure=f, case=c, task=t, level="default", facts=facts)
            for i, (f, c, t) in enumerate(tasks)
        ]
        for cell in store.register(self.study.name, new).values():
            reports = [
                ProcessReport(
                    number=number,
                    samples={
                        "first": Samples(seconds=(1.0,)),
                        "steady": Samples(seconds=tuple(rng.uniform(0.001, 0.0011) for _ in range(40))),
                    },
                    ready=Ready(threads=1, versions={"python": "3.11"}),
                    memory=PeakMemory(peak_bytes=1e6),
                    reference_loop=ReferenceLoop(readings=((0, 1e-4),), seconds=1e-4),
                )
                for number in range(2)
            ]
            whole = summarise(reports, interval([r.steady for r in reports]), "precision")
            store.add(cell.id, reports[0])
            store.add(cell.id, reports[1], Settled(cell=cell.id, summary=whole))
        store.add_forecasts("1", {("task", "h200"): {"step_seconds": 1.0}})
        store.seed(self.study.name, 5)
        store.close()
        return path

    def read(self, path: Path) -> str:
        from windtunnel.measurement.store import Store
        from windtunnel.study.results import results
        from windtunnel.study.samples import raw_processes

        store = Store(path)
        try:
            rows = results(self.study, store, samples=None)
            raw = list(raw_processes(self.study, store))
            counts = sorted(store.counts(self.study.name).items())
            return repr((rows, raw, counts, store.forecasts("1"), store.seed(self.study.name, 9)))
        finally:
            store.close()

    def damaged(self, rng: random.Random, good: Path, bad: Path) -> str:
        if rng.random() < 0.7:
            return super().damaged(rng, good, bad)
        shutil.copy(good, bad)
        ways = (
            "swapped summaries",
            "swapped samples",
            "lost row",
            "changed text",
            "other key",
            "old version",
        )
        how = rng.choice((*ways, "old version"))
        db = sqlite3.connect(bad)
        if how == "old version":  # a value changed, and the version claimed that had no checksums
            db.execute(f"PRAGMA user_version = {rng.choice((1, 2))}")
            forget_checksums(db, whole=rng.random() < 0.5)
            db.execute("UPDATE cell SET error = 'x' WHERE id = 1")
            db.commit()
            db.close()
            return how
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        one, two = rng.sample([row[0] for row in db.execute("SELECT id FROM cell")], 2)
        if how == "swapped summaries":
            texts = [
                db.execute("SELECT summary FROM cell WHERE id = ?", (n,)).fetchone()[0] for n in (one, two)
            ]
            db.executemany("UPDATE cell SET summary = ? WHERE id = ?", zip(texts, (two, one), strict=True))
        elif how == "swapped samples":
            processes = [row[0] for row in db.execute("SELECT process FROM sample WHERE phase = 'steady'")]
            a, b = rng.sample(processes, 2)
            query = "SELECT seconds FROM sample WHERE process = ? AND phase = 'steady'"
            blobs = [db.execute(query, (n,)).fetchone()[0] for n in (a, b)]
            text = "UPDATE sample SET seconds = ? WHERE process = ? AND phase = 'steady'"
            db.executemany(text, zip(blobs, (b, a), strict=True))
        elif how == "lost row":
            table = rng.choice(("sample", "place"))
            if table == "sample":
                db.execute("DELETE FROM sample WHERE process = ?", (rng.randint(1, 10),))
            else:
                db.execute("DELETE FROM place WHERE cell = ?", (one,))
        elif how == "changed text":
            db.execute(
                "UPDATE cell SET task = replace(task, '\"n_rec\": 1', '\"n_rec\": 2') WHERE id = ?", (one,)
            )
        else:
            db.execute("UPDATE process SET cell = ?, number = number + 7 WHERE cell = ?", (one, two))
        db.commit()
        db.close()
        return how


def forget_checksums(db: sqlite3.Connection, whole: bool) -> None:
    """Make a store look like one of version 2, in every way if `whole`."""
    from windtunnel.measurement import checksums

    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        db.execute(f"DROP TRIGGER {name}")
    if not whole:
        return
    db.execute("PRAGMA user_version = 2")
    db.execute("DROP TABLE tally")
    for table in checksums.TABLES:
        db.execute(f"ALTER TABLE {table} DROP COLUMN {checksums.COLUMN}")


class Checkpoint(Target):
    name = "checkpoint"

    def damaged(self, rng: random.Random, good: Path, bad: Path) -> str:
        """One time in four a value is changed, and the format claimed that had no checksum."""
        if rng.random() < 0.75:
            return super().damaged(rng, good, bad)
        import safetensors.torch

        body = good.read_bytes()
        size = int.from_bytes(body[:8], "little")
        metadata = json.loads(body[8 : 8 + size])["__metadata__"]
        header = json.loads(metadata["windtunnel"])
        header["note"]["done"] = [9, 9]
        header["format"] = rng.choice((0, 1, 2, 3))
        metadata["windtunnel"] = json.dumps(header)
        if rng.random() < 0.5:
            metadata.pop("checksum")
        bad.write_bytes(safetensors.torch.save(safetensors.torch.load(body), metadata=metadata))
        return f"format {header['format']}, {'with' if 'checksum' in metadata else 'without'} checksum"

    def write(self) -> Path:
        import torch

        from windtunnel.learning import checkpoint

        torch.manual_seed(0)
        net = torch.nn.Linear(20, 20)
        trees = {
            "model": dict(net.state_dict()),
            "optimizers": [{"state": {0: {"momentum": torch.ones(20)}}, "rate": 0.1}],
            "random": {"order": torch.arange(64, dtype=torch.uint8)},
        }
        path = self.folder / "good.safetensors"
        checkpoint.save(path, trees, {"done": [0, 3], "rows": [{"epoch": i, "loss": 0.5} for i in range(5)]})
        return path

    def read(self, path: Path) -> str:
        import torch

        from windtunnel.learning import checkpoint

        torch.set_printoptions(profile="full", precision=10)
        return repr(checkpoint.load(path))


class Profile(Target):
    name = "profile, .json.gz"
    suffix = ".json.gz"

    def write(self) -> Path:
        from windtunnel.machine import profiles

        path = self.folder / f"good{self.suffix}"
        profiles.save(path, profiles.load("ice-lake-2-cores"), {"model": "a CPU"})
        return path

    def read(self, path: Path) -> str:
        from windtunnel.forecast import profile_format
        from windtunnel.machine import profiles

        return repr(profile_format.plain(profiles.load(str(path))))

    def damaged(self, rng: random.Random, good: Path, bad: Path) -> str:
        """One time in four a value is changed, and the format claimed that had no checksum."""
        from windtunnel import records

        if rng.random() < 0.75:
            return super().damaged(rng, good, bad)
        data = {**records.load(good), "fixed_seconds": 1.0, "format": rng.choice((3, 4, 5, 6))}
        if rng.random() < 0.5:
            data.pop("checksum")
        records.write_text(bad, json.dumps(data))
        return f"format {data['format']}, {'with' if 'checksum' in data else 'without'} checksum"


class PlainProfile(Profile):
    name = "profile, .json"
    suffix = ".json"


class HostileProfile(PlainProfile):
    """Values changed by someone who means it, checksum and all: no damage, but nothing may break."""

    name = "profile, hostile values"
    strict = False

    def damaged(self, rng: random.Random, good: Path, bad: Path) -> str:
        data = json.loads(good.read_text())
        kinds = {name: kind for name, kind in data["kinds"].items() if name.startswith(("mat", "stream"))}
        data["kinds"] = dict(rng.sample(sorted(kinds.items()), 2))
        bad.write_text(sealed(worsen(rng, data)))
        return "values"

    def read(self, path: Path) -> str:
        from windtunnel.forecast.forecast import forecast_step
        from windtunnel.job.workload import Workload
        from windtunnel.machine.machine import Machine
        from windtunnel.machine.profiles import load
        from windtunnel.prediction import trace
        from windtunnel.strategy import Strategy

        profile, machine = load(str(path)), Machine.named("ice-lake-2-cores")
        if not hasattr(self, "trace"):
            self.trace = trace(Workload.named("ffn"), Strategy(), "cpu")
        return judged(forecast_step(self.trace, machine, Strategy(), profile).forecast)


def _path_of(machine: Any) -> Path:
    from windtunnel.machine import machine as machines

    return machines.home() / f"host-{machine.device.kind}.json"


class HostProbe(Target):
    name = "host probe"

    def write(self) -> Path:
        from windtunnel.machine import here
        from windtunnel.machine.machine import Machine

        self.machine = Machine.named("emerald-rapids-2-cores")
        here.save_host_factor(self.machine, 1.25)
        return _path_of(self.machine)

    def read(self, path: Path) -> str:
        from windtunnel.machine import here

        path.replace(_path_of(self.machine))
        return repr(here._with_host_probe(self.machine))

    def damaged(self, rng: random.Random, good: Path, bad: Path) -> str:
        if not hasattr(self, "text"):
            self.text = good.read_bytes()
        good.write_bytes(self.text)
        for left in good.parent.glob("*.unsealed*"):
            left.unlink()
        if rng.random() < 0.5:
            return super().damaged(rng, good, bad)
        data = {**worsen(rng, json.loads(self.text)), "format": rng.choice((0, 1, 2))}
        data.pop("checksum", None)
        bad.write_text(as_json(data))
        return "values"


class MachineFile(Target):
    name = "machine file"
    strict = False

    def write(self) -> Path:
        from windtunnel.job.workload import Workload
        from windtunnel.machine.machine import Machine
        from windtunnel.prediction import trace
        from windtunnel.strategy import Strategy

        self.traces = {
            kind: trace(Workload.named("ffn"), Strategy(), kind)  # type: ignore[arg-type]
            for kind in ("cpu", "gpu")
        }
        for name in ("h200", "i7-3820", "2xgtx1080"):
            Machine.named(name).save(self.folder / f"{name}.json")
        return self.folder / "h200.json"

    def read(self, path: Path) -> str:
        from windtunnel.forecast.forecast import forecast_step
        from windtunnel.machine.machine import Machine
        from windtunnel.machine.profiles import profile_for
        from windtunnel.strategy import Strategy

        machine = Machine.load(path)
        strategy = Strategy(data_parallel=1)
        one = forecast_step(self.traces[machine.device.kind], machine, strategy, profile_for(machine))
        return judged(one.forecast)

    def damaged(self, rng: random.Random, good: Path, bad: Path) -> str:
        name = rng.choice(("h200", "i7-3820", "2xgtx1080"))
        data = worsen(rng, json.loads((self.folder / f"{name}.json").read_text()))
        bad.write_text(as_json(data))
        return "values"


class StudyFile(Target):
    name = "study file"
    strict = False

    def write(self) -> Path:
        small_study(self.folder / "attacked")
        return self.folder / "attacked" / "figure-1.toml"

    def read(self, path: Path) -> str:
        from windtunnel.study import study as studies
        from windtunnel.study.run.cells import cells_of

        if path.stat().st_size > 2**20:
            return "finite"
        cells_of(studies.load(path.parent), 4)
        return "finite"

    def damaged(self, rng: random.Random, good: Path, bad: Path) -> str:
        text = good.read_text() if not hasattr(self, "text") else self.text
        self.text = text
        folder = bad.parent / "attacked"
        if rng.random() < 0.5:
            body = rng.choice(BYTES)(rng, text.encode())
        else:
            body = as_toml(worsen(rng, tomllib.loads(text))).encode()
        (folder / "figure-1.toml").write_bytes(body)
        return "text"


def as_toml(data: dict[str, Any]) -> str:
    return "\n".join(f"{json.dumps(key)} = {inline(value)}" for key, value in data.items())


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return as_json(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return '""' if value is None else as_json(value)


def sealed(data: dict[str, Any]) -> str:
    """The data as a file with the right checksum, where this version has checksums."""
    from windtunnel import records

    data.pop("checksum", None)
    seal = getattr(records, "seal", None)
    body = as_json(data)
    return str(seal(body)) if seal and body != "{}" else body


def small_study(folder: Path) -> Any:
    from windtunnel.study import study as studies

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text('title = "T"\nauthors = "A"\nyear = 2020\nsource = "S"\n')
    (folder / "figure-1.toml").write_text(
        'title = "F"\nsource = "S"\njob = "rnn"\n[grid]\n'
        "n_rec = [10, 11, 12, 13, 14, 15]\nn_steps = [10, 20]\n"
        '[[case]]\nname = "cpu"\nlabels = ["torch:loop"]\n'
    )
    return studies.load(folder)


def cells_as_text(study: Any) -> list[tuple[str, str, str]]:
    from windtunnel.measurement.store import dump
    from windtunnel.study.run.cells import cells_of

    return [(cell.figure, cell.case, dump(cell.task)) for cell in cells_of(study, 4)]


TARGETS: tuple[type[Target], ...] = (
    *(StoreFile, Checkpoint, Profile, PlainProfile, HostileProfile, HostProbe, MachineFile, StudyFile),
)


def attack(kind: type[Target], tries: int, seconds: float, show: bool) -> Counter[str]:
    """Outcomes of so many tries on one kind of file, within a time."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        target = kind(Path(place))
        good = target.write()
        expected, end = target.read(good) if kind.strict else "finite", time.monotonic() + seconds
        if kind is HostProbe:
            good = target.write()
        for number in range(tries):
            if time.monotonic() > end:
                break
            rng = random.Random(f"{kind.name} {number}")
            bad = Path(place) / f"bad{''.join(good.suffixes)}"
            how = target.damaged(rng, good, bad)
            outcome = judge(target, good if kind is StudyFile else bad, expected)
            counts[outcome.partition(":")[0]] += 1
            if show and outcome.startswith(("different", "traceback")):
                print(f"  {kind.name} {number} ({how}): {outcome}")
            for left in Path(place).glob("bad*"):
                left.unlink()
    return counts


class Late(BaseException):
    """A try that takes too long."""


def _late(number: int, frame: FrameType | None) -> None:
    raise Late


def judge(target: Target, path: Path, expected: str) -> str:
    notes = list[warnings.WarningMessage]()
    signal.signal(signal.SIGPROF, _late)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
    try:
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always", Note)
            read = target.read(path)
    except WindtunnelError:
        return "noticed"
    except Late:
        return f"traceback: no end within {LIMIT_SECONDS} s of a processor"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return f"traceback: {type(error).__name__} {str(error)[:60]} at {place}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if any(issubclass(each.category, Note) for each in notes):
        return "told"
    return "same" if read == expected else f"different: {read[:60]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=200, help="for each kind of file")
    parser.add_argument("--seconds", type=float, default=60.0, help="at most, for each kind of file")
    parser.add_argument("--only", default="", help="one kind of file: store, checkpoint, ...")
    parser.add_argument("--show", action="store_true", help="print each failure")
    options = parser.parse_args()
    os.environ["WINDTUNNEL_PROFILES"] = tempfile.mkdtemp()
    print(f"{'':<26}{'tries':>8}" + "".join(f"{name:>11}" for name in OUTCOMES))
    bad = 0
    for kind in TARGETS:
        if options.only and not kind.name.startswith(options.only):
            continue
        counts = attack(kind, options.tries, options.seconds, options.show)
        bad += counts["different"] + counts["traceback"]
        print(
            f"{kind.name:<26}{sum(counts.values()):>8}" + "".join(f"{counts[name]:>11}" for name in OUTCOMES),
            flush=True,
        )
    shutil.rmtree(os.environ["WINDTUNNEL_PROFILES"])
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
