"""The same attack as `attack_data.py` on the other files that commands read: plans, rows, tables, networks.

Of files that people write (plans, tables, published measurements) a changed one is just another file: there
it counts what ends in anything but an error of windtunnel or an answer. A saved network, a ladder and a
kept trace have checksums: there nothing else may be read than was written.

    python benchmarks/attack_inputs.py --tries 100 [--published FOLDER] [--only published] [--show]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from attack_data import BYTES, OUTCOMES, Target, as_json, as_toml, attack, hostile, worsen

_PUBLISHED = ""


class Written(Target):
    """A file that people write. Half of its copies have changed bytes, half changed values."""

    strict = False
    name_of_file = "input.toml"

    def text(self) -> str:
        raise NotImplementedError

    def write(self) -> Path:
        path = self.folder / f"good-{self.name_of_file}"
        path.write_text(self.text())
        return path

    def damaged(self, rng: random.Random, good: Path, bad: Path) -> str:
        if rng.random() < 0.5:
            return super().damaged(rng, good, bad)
        bad.write_text(self.changed(rng, good.read_text()))
        return "values"

    def changed(self, rng: random.Random, text: str) -> str:
        import tomllib

        if self.name_of_file.endswith(".toml"):
            return as_toml(worsen(rng, tomllib.loads(text)))
        return as_json(worsen(rng, json.loads(text)))


class Plan(Written):
    name = "plan"

    def text(self) -> str:
        return (
            'job = ["ffn"]\non = "2xh100"\nwhy = "x"\n[options]\nstorage = "3GB/s"\nexamples = 1000\n'
            '[strategy]\nbatch = 64\nprecision = "bf16"\ndata_parallel = 2\naccumulate = 2\n'
        )

    def read(self, path: Path) -> str:
        from windtunnel.forecast.forecast import forecast_step
        from windtunnel.job.workload import Workload
        from windtunnel.machine.machine import Machine
        from windtunnel.machine.profiles import profile_for
        from windtunnel.prediction import trace
        from windtunnel.saved_plan import SavedPlan

        plan = SavedPlan.load(path)
        machine = Machine.find(plan.on or "h200")
        if plan.strategy.data_parallel not in (None, 1, 2):
            return "finite"  # traced by PyTorch's own code for so many workers, which takes long
        recorded = trace(Workload.named("ffn"), plan.strategy, machine.device.kind)
        forecast_step(recorded, machine, plan.strategy, profile_for(machine))
        return "finite"


class Rows(Written):
    """Rows of another machine, as `study report --with` reads them."""

    name = "rows of a study"
    name_of_file = "rows.json"

    def text(self) -> str:
        from windtunnel.study import export
        from windtunnel.study import study as studies
        from windtunnel.study.results import published

        rows = published(studies.find("wuensche-2018"))[:4]
        export.write(rows, self.folder / "rows-of-a-paper.json")
        return (self.folder / "rows-of-a-paper.json").read_text()

    def changed(self, rng: random.Random, text: str) -> str:
        return as_json(worsen(rng, {"rows": json.loads(text)}).get("rows", 7))

    def read(self, path: Path) -> str:
        from windtunnel.reports.study import build
        from windtunnel.study import export
        from windtunnel.study import study as studies

        build(studies.find("wuensche-2018"), export.read(path), ())
        return "finite"


class Table(Written):
    """A table of measured steps, as `validate --on FILE.jsonl` reads it."""

    name = "table of steps"
    name_of_file = "table.jsonl"

    def text(self) -> str:
        from windtunnel.accuracy import truth

        lines = truth.find_table("emerald-rapids-2-cores", "truth").read_text().splitlines()
        return "\n".join(lines[:6]) + "\n"

    def changed(self, rng: random.Random, text: str) -> str:
        lines = text.splitlines()
        place = rng.randrange(len(lines))
        lines[place] = as_json(worsen(rng, json.loads(lines[place]))).replace("\n", " ")
        return "\n".join(lines)

    def read(self, path: Path) -> str:
        from windtunnel.accuracy.validation import validate

        str(validate(str(path), "truth").text(rows=True))
        return "finite"


class Published(Written):
    """One file of the folder of published measurements."""

    name = "published"

    def write(self) -> Path:
        from windtunnel.accuracy import published

        self.tables = tuple(published.TABLES)
        self.place = self.folder / "published"
        shutil.copytree(_PUBLISHED, self.place)
        return self.folder / "published"

    def damaged(self, rng: random.Random, good: Path, bad: Path) -> str:
        shutil.rmtree(self.place)
        shutil.copytree(_PUBLISHED, self.place)
        self.table = rng.choice(self.tables)
        self.file = rng.choice([self.place / name for name in FILES[self.table]])
        text = self.file.read_bytes()
        if rng.random() < 0.4:
            how = rng.choice(BYTES)
            self.file.write_bytes(how(rng, text))
            return f"{self.table}, {how.__name__}"
        lines = text.decode().splitlines()
        rows = [n for n, line in enumerate(lines) if line and not line.startswith("#")]
        place = rng.choice(rows if rng.random() < 0.9 else rows[:1])
        cells = lines[place].split(",")
        cells[rng.randrange(len(cells))] = str(hostile(rng))[:6000]
        lines[place] = ",".join(cells)
        self.file.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
        return f"{self.table}, value in line {place + 1} of {self.file.name}"

    def read(self, path: Path) -> str:
        from windtunnel.accuracy import published

        found = published.validate_published(self.table, self.place)
        found.plain(rows=True)
        found.text(rows=True)
        return "finite"


FILES = {
    "all-reduce": (
        "allreduce_a100_v100_2_to_8.csv",
        "allreduce_curves_a100_h200_b200.csv",
        "deepbench_allreduce.csv",
    ),
    "megatron": ("megatron_narayanan2021_a100.csv",),
    "llama": ("llama_h100_1_to_4_nodes.csv",),
    "gpt-small": ("gpt_small_a100_one_node.csv",),
    "llama-regret": ("llama_h100_1_to_4_nodes.csv",),
    "gpt-small-regret": ("gpt_small_a100_one_node.csv",),
    "mpt": ("mpt_fsdp_a100_40gb.csv",),
    "exchange": ("exchange_methods_2080ti_10gbe.csv",),
    "tensorflow-2017": ("tensorflow_benchmarks_2017_k80_p100.csv",),
    "storage-feed": ("storage_feed_a100.csv",),
    "diloco": ("diloco_measured_runs.csv",),
}


class Network(Target):
    """A network that the ladder saved, as `network use` reads it."""

    name = "saved network"

    def write(self) -> Path:
        from windtunnel.choosing import ladder, own_data, saved

        table = self.folder / "flowers.csv"
        rows = (f"{n % 7},{n % 5},{'a' if n % 7 > 3 else 'b'}" for n in range(120))
        table.write_text("\n".join(["x,y,kind", *rows]))
        self.table, place = table, self.folder / "climbed"
        ladder.climb(own_data.read_own(table, target="kind"), ladder.LadderOptions(folder=place, seconds=1.0))
        return place / saved.NAME

    def read(self, path: Path) -> str:
        from windtunnel.choosing import saved

        network = saved.load(path)
        answers, notes = saved.answer(network, self.table)
        return repr((answers, notes))


class Kept(Target):
    """A trace that the cache keeps: a damaged one counts as absent."""

    name = "kept trace"

    def write(self) -> Path:
        from windtunnel.isolation import codec
        from windtunnel.isolation.cache import AnswerCache
        from windtunnel.job.workload import Workload
        from windtunnel.prediction import trace
        from windtunnel.strategy import Strategy

        self.cache = AnswerCache(self.folder / "cache")
        self.body = codec.encode(trace(Workload.named("ffn"), Strategy(), "cpu"))
        self.cache.put("question", {}, self.body)
        return self.cache._path("question")

    def read(self, path: Path) -> str:
        place = self.cache._path("question")
        if path != place:
            shutil.copy(path, place)
        found = self.cache.get("question")
        if found is None:
            self.cache.put("question", {}, self.body)
        return "same" if found in (None, self.body) else "other"

    def damaged(self, rng: random.Random, good: Path, bad: Path) -> str:
        self.cache.put("question", {}, self.body)
        return super().damaged(rng, good, bad)


class Ladder(Written):
    """The notes of a ladder, which a later `advise --data` reads."""

    name = "notes of a ladder"
    strict = True
    name_of_file = "ladder.json"

    def write(self) -> Path:
        from windtunnel.choosing import ladder, own_data

        table = self.folder / "flowers.csv"
        rows = (f"{n % 7},{n % 5},{'a' if n % 7 > 3 else 'b'}" for n in range(120))
        table.write_text("\n".join(["x,y,kind", *rows]))
        self.data, self.place = own_data.read_own(table, target="kind"), self.folder / "climbed"
        self.options = ladder.LadderOptions(folder=self.place, seconds=1.0)
        ladder.climb(self.data, self.options)
        return self.place / "ladder.json"

    def read(self, path: Path) -> str:
        from windtunnel.choosing import ladder

        place = self.place / "ladder.json"
        kept = place.read_bytes()
        try:
            place.write_bytes(path.read_bytes())
            return repr(ladder._Run(self.data, self.options, lambda *said: None).known)
        finally:
            place.write_bytes(kept)


TARGETS: tuple[type[Target], ...] = (Plan, Rows, Table, Published, Network, Kept, Ladder)


def main() -> None:
    global _PUBLISHED
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=100, help="for each kind of file")
    parser.add_argument("--seconds", type=float, default=120.0, help="at most, for each kind of file")
    parser.add_argument("--only", default="", help="one kind of file")
    parser.add_argument("--published", default="", help="the folder of published measurements")
    parser.add_argument("--show", action="store_true", help="print each failure")
    options = parser.parse_args()
    _PUBLISHED = options.published
    os.environ["WINDTUNNEL_HOME"] = tempfile.mkdtemp()
    print(f"{'':<26}{'tries':>8}" + "".join(f"{name:>11}" for name in OUTCOMES))
    bad = 0
    for kind in TARGETS:
        if options.only not in ("", kind.name) or (kind is Published and not _PUBLISHED):
            continue
        counts = attack(kind, options.tries, options.seconds, options.show)
        bad += counts["different"] + counts["traceback"]
        numbers = "".join(f"{counts[name]:>11}" for name in OUTCOMES)
        print(f"{kind.name:<26}{sum(counts.values()):>8}{numbers}", flush=True)
    shutil.rmtree(os.environ["WINDTUNNEL_HOME"])
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
