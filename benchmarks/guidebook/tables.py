"""Tables of the guide."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from findings_text import GUIDE, NAMES, Figures

from guidebook.cases import CPU, DRIVES, FED, GPU, NETWORKS, OLD_FED, OLD_GPU, UNITS
from guidebook.ladder import LadderFigures
from guidebook.values import Values, percent, plain, table
from windtunnel import displays, units
from windtunnel.machine.building import shared_link

_DOCS = Path(__file__).parents[2] / "docs"
_FACTORS, _BOARDS = _DOCS / "results" / "factors-guide.json", _DOCS / "results" / "inference-boards.json"
_ACCURACY = _DOCS / "accuracy.json"
MACHINES = {
    "i7-3820": "a CPU of 2012, 4 cores (i7-3820)",
    CPU: "a desktop CPU, 16 cores (Ryzen 9 5950X)",
    OLD_GPU: "a GPU of 2016 (GTX 1080)",
    GPU: "a desktop GPU (RTX 4090)",
    "h200": "a server GPU (H200)",
    "8xh200": "one server with 8 H200",
    "8x8xh200": "8 such servers, 64 GPUs",
}
DRIVE_NAMES = {
    DRIVES[0]: "hard disk",
    DRIVES[1]: "SATA SSD",
    DRIVES[2]: "one NVMe SSD (960 PRO)",
    DRIVES[3]: "five of them, striped",
    DRIVES[4]: "four NVMe SSDs of a server",
}
WAYS = {
    "data": "data parallel",
    "optimizer": "data parallel, optimizer state divided (ZeRO-1)",
    "gradients": "gradients divided too (ZeRO-2)",
    "weights": "weights divided too (ZeRO-3, FSDP)",
    "tensor": "tensor parallel, 8",
    "pipeline": "pipeline, 8 stages, 8 micro-batches",
    "mixed": "tensor 4 x pipeline 2, 8 micro-batches",
}
FORMS = {
    "sync": "synchronous",
    "server": "synchronous through a server",
    "async": "asynchronous",
    "mixed": "mixed",
    "local": "local, average every 10 steps",
}
USERS = {
    "raspberry-pi-5": "Raspberry Pi 5",
    "jetson-orin-nano": "Jetson Orin Nano",
    CPU: "Ryzen 9 5950X",
    GPU: "RTX 4090",
    "h200": "H200",
}

PLACES = {
    "copied ahead": "host memory, copied ahead",
    "from five SSDs in RAID 0": "five SSDs",
    "from one SSD": "one SSD",
    "from a hard disk": "a hard disk",
}
REMEDIES = {
    "memory.128": "batch 128, as it is",
    "memory.fp16": "fp16 autocast",
    "memory.recompute": "recompute blocks",
    "memory.accumulate": "4 micro-batches of 32",
}
FINDINGS = {
    "linear in timesteps": "time is linear in timesteps",
    "cluster CPU beats GPU on small networks": "on small networks the cluster's CPU beats the GPU",
    "input and output sizes do not matter": "sizes of input and output do not matter",
    "sigmoid faster than relu": "sigmoid is slightly faster than relu",
    "streamed data is faster": "sending data piece by piece is faster than keeping it on the GPU",
    "Keras slower at few timesteps": "Keras is slower with few timesteps",
    "Keras faster at many timesteps": "Keras is faster with many timesteps",
    "first step is cold": "the first run is strangely slow",
}
_PICTURE_BYTES = 3 * 224 * 224  # of a picture as the network sees it, a byte for each colour
# Small data sets as bytes: pictures to train on, times the bytes of one.
_SMALL_DATA = {"MNIST": 60_000 * 28 * 28, "CIFAR-10": 50_000 * 3 * 32 * 32}


@functools.cache
def figures_of_studies() -> Figures:
    """The committed rows and their verdicts; judging them takes seconds."""
    return Figures()


class Tables:
    """Every table, by its name."""

    def __init__(self, values: Values, figures: Figures) -> None:
        self.g, self.f = values, figures
        self.ladder = LadderFigures(values.ladder)

    def one_job(self) -> str:
        lines = [
            [words, self.g.rate(f"job.{name}"), self.g.run(f"job.{name}")] for name, words in MACHINES.items()
        ]
        return table(("machine", "pictures a second", "90 epochs"), lines)

    def networks(self) -> str:
        lines = []
        for name in NETWORKS:
            cpu, gpu = f"net.{name}.cpu", f"net.{name}.gpu"
            lines.append(
                [
                    *(f"`{name}`", self.g.parameters(cpu), str(self.g.forecasts[cpu]["batch"])),
                    *(self.g.step(cpu), self.g.step(gpu), plain(self.g.over(cpu, gpu))),
                ]
            )
        return table(("network", "weights", "batch", "step, CPU", "step, GPU", "CPU / GPU"), lines)

    def gpu_gain(self) -> str:
        """The time of the CPU over that of the GPU, today and then."""
        lines = []
        for name in FED:
            now = [
                plain(self.g.over(f"net.{name}.cpu", f"{key}"))
                for key in (f"net.{name}.gpu", f"gpu.{name}.streamed", f"gpu.{name}.prefetched")
            ]
            then = [
                plain(self.g.over(f"old.{name}.cpu", f"old.{name}.{data}")) if name in OLD_FED else ""
                for data in ("resident", "streamed")
            ]
            lines.append([f"`{name}`", *now, *then])
        heads = ("network", "data on the GPU", "copied in each step", "copied ahead", "2018, on it", "copied")
        return table(heads, lines)

    def ways(self) -> str:
        lines = []
        for name, words in WAYS.items():
            key = f"ways.{name}"
            fits = self.g.fits(key)
            lines.append(
                [
                    words,
                    self.g.memory(key),
                    "yes" if fits else "no",
                    self.g.step(key) if fits else "",
                    percent(self.g.part(key, "communication")) if fits else "",
                ]
            )
        return table(("way", "memory of each GPU", "fits", "step", "communication"), lines)

    def exchange(self, run: str, workers: int) -> str:
        lines = []
        for form, words in FORMS.items():
            row = self.g.exchanged[f"{run}.{form}.{workers}"]
            rate, stale = f"{row['examples_per_second']:,.0f}", _staleness(row["staleness"])
            lines.append([words, rate, plain(row["speedup"]), percent(row["wait_share"]), stale])
        heads = ("exchange", "pictures a second", "times one GPU", "waiting", "staleness")
        return table(heads, lines)

    def learned(self) -> str:
        lines = []
        for form in ("sync", "async", "mixed", "local"):
            runs, reached = self.g.reached(form), len(self.g.reached(form))
            enough = reached >= 2
            lines.append(
                [
                    FORMS[form],
                    f"{reached} of 3",
                    units.show(self.g.learning(form, "seconds"), "s") if enough else "",
                    plain(self.g.learning(form, "epochs")) if enough else "",
                    _staleness(self.g.learning(form, "staleness")) if runs else "",
                ]
            )
        heads = ("exchange", "seeds that reach it", "time of the cluster", "epochs", "staleness")
        return table(heads, lines)

    def drives(self) -> str:
        """One and eight H200, each against data that is on the GPU already."""
        lines = []
        for one, eight, words in self.drive_keys():
            shares = [
                percent(self.g.seconds(best) / self.g.seconds(key))
                for key, best in ((one, "place.resident"), (eight, "eight.resident"))
            ]
            lines.append([words, self.g.rate(one), shares[0], self.g.rate(eight), shares[1]])
        heads = ("the files are on", "one H200: pictures a second", "GPU works", "eight H200", "GPUs work")
        return table(heads, lines)

    def drive_keys(self) -> list[tuple[str, str, str]]:
        """Where the files are: the forecast of one H200, that of eight, and the place in words."""
        rows = [(f"drive.{drive}", f"eight.{drive}", words) for drive, words in DRIVE_NAMES.items()]
        rows += [("loaders.32", "eight.page-cache", "host's memory (page cache)")]
        return [*rows, ("place.resident", "eight.resident", "memory of the GPU")]

    def data_rates(self) -> dict[str, float]:
        """Bytes a second that nodes read to train ResNet-50, and that networks carry."""
        rate = self.g.read_rate
        return {
            "four GTX 1080 read": 4 * rate("job.gtx1080"),
            "one RTX 4090 reads": rate("job.rtx4090"),
            "eight H200 read": rate("job.8xh200"),
            "10 Gbit/s Ethernet carries": shared_link("ethernet-10g").rate,
            "one InfiniBand NDR card carries": shared_link("infiniband-ndr").rate,
        }

    def data_sizes(self) -> dict[str, float]:
        """Bytes of data sets."""
        examples = self.g.stored("examples")
        return {
            **_SMALL_DATA,
            "ImageNet as JPEG files": examples * self.g.stored("example_bytes"),
            "ImageNet, 224 x 224, as bytes": examples * _PICTURE_BYTES,
            "ImageNet, 224 x 224, as 32-bit numbers": examples * 4 * _PICTURE_BYTES,
        }

    def memory(self) -> str:
        names = {
            "memory.32": "batch 32",
            "memory.64": "batch 64",
            "memory.128": "batch 128",
            "memory.fp16": "batch 128, fp16 autocast",
            "memory.recompute": "batch 128, recompute blocks",
            "memory.accumulate": "batch 128 as 4 micro-batches of 32",
        }
        lines = [
            [
                words,
                self.g.memory(key),
                self.g.memory_part(key, "activations"),
                "yes" if self.g.fits(key) else "no",
                self.g.example(key) if self.g.fits(key) else "",
            ]
            for key, words in names.items()
        ]
        return table(("ResNet-50 on a GTX 1080", "memory", "activations", "fits", "time of a picture"), lines)

    def largest(self) -> str:
        lines = []
        for job in ("resnet50", "gpt2"):
            for machine in (OLD_GPU, GPU, "h200"):
                kept = [
                    f"{self.g.largest[f'{job}.{machine}.{way}']:,}"
                    for way in ("plain", "recompute", "low precision")
                ]
                lines.append([f"`{job}` on `{machine}`", *kept])
        return table(("largest batch that fits", "plain", "recompute blocks", "fp16 autocast"), lines)

    def recurrent(self) -> str:
        """Forecasts over the width: the laptop and the GPU of 2017, and today's desktop."""
        machines = {"macbook-2016": "MacBook 2016", "k80": "K80", CPU: "Ryzen 9", GPU: "RTX 4090"}
        lines = [
            [f"{width:,}", *(self.g.step(f"rnn.{machine}.{width}") for machine in machines)]
            for width in UNITS
        ]
        return table(("units", *machines.values()), lines)

    def crossing(self, cpu: str, gpu: str) -> int:
        """The first width at which the GPU is faster, by forecast."""
        faster = [n for n in UNITS if self.g.seconds(f"rnn.{gpu}.{n}") < self.g.seconds(f"rnn.{cpu}.{n}")]
        return faster[0]

    def use(self) -> str:
        lines = []
        for machine, words in USERS.items():
            cells = [self.g.step(f"use.{machine}.{batch}") for batch in (1, 8, 64)]
            lines.append([words, *cells, self.g.rate(f"use.{machine}.64")])
        heads = ("machine", "1 picture", "8 pictures", "64 pictures", "pictures a second, at 64")
        return table(heads, lines)

    def factors(self) -> list[dict[str, Any]]:
        """The guide's examples: the strongest factor of each part."""
        data = json.loads(_FACTORS.read_text(encoding="utf-8"))
        return [
            {"example": f"{case['job']} on {case['machine']}", "part": part["group"], "ratio": part["ratio"]}
            for case in data["cases"]
            for part in case["verdict"]["groups"]
        ]

    def influence(self) -> str:
        rows = self.factors()
        parts = ("network", "processing unit", "data flow")
        lines = []
        for example in dict.fromkeys(row["example"] for row in rows):
            at = {row["part"]: row["ratio"] for row in rows if row["example"] == example}
            lines.append([f"`{example}`", *(plain(at[part]) if part in at else "" for part in parts)])
        return table(("job", *parts), lines)

    def first_part(self, part: str) -> int:
        """In how many examples this part has the strongest factor."""
        rows = self.factors()
        examples = dict.fromkeys(row["example"] for row in rows)
        best = [
            max((r for r in rows if r["example"] == e), key=lambda r: r["ratio"])["part"] for e in examples
        ]
        return best.count(part)

    def step_of(self, figure: str, case: str, devices: int) -> float:
        """A committed forecast of the study of the earlier guide."""
        row = self.f.ahead._case(figure, case)[devices]
        assert row.step_seconds is not None
        return row.step_seconds

    def clusters(self) -> str:
        counts, lines = (4, 8, 16, 32, 64), []
        for case in self.f.ahead.cases("clusters"):
            one = self.step_of("clusters", case, 4)
            lines.append([case, *(plain(one / self.step_of("clusters", case, n)) for n in counts)])
        return table(("speed over one cluster, by clusters", *(str(n // 4) for n in counts)), lines)

    def part_rows(self, keys: dict[str, str]) -> list[dict[str, Any]]:
        """The parts of steps in per cent, for a chart: a row for each part of each named forecast."""
        used = {part for key in keys.values() for part in self.g.forecasts[key]["parts"]}
        parts = [part for part in displays.PART_COLOURS if part in used]
        return [
            {"y": words, "x": 100 * self.g.part(key, part), "part": part}
            for words, key in keys.items()
            for part in parts
        ]

    def frameworks(self) -> dict[str, float]:
        """Seconds of a step on one core (50 units, 20 timesteps), the fastest way first."""
        found = {
            name: self.f.seconds(label, "cpu", 50, 20)
            for label, name in (
                *((f"{key}:scan", NAMES[key]) for key in ("jax", "pytensor")),
                *(("numpy:hand", NAMES["numpy"]), ("torch:compiled", "PyTorch compiled")),
                *(("torch:loop", "PyTorch loop"), ("mxnet:loop", NAMES["mxnet"])),
                ("keras-torch:fit", NAMES["keras-torch"]),
            )
        }
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def findings(self) -> str:
        """What the report of 2017 found, and what holds today."""
        lines = [[words, self.f.grade(claim), self.holding(claim)] for claim, words in FINDINGS.items()]
        return table(("finding of 2017", "today", "holds in"), lines)

    def holding(self, claim: str) -> str:
        """In how many of its parts a claim holds: 14 of 19."""
        parts = self.f.verdict(claim).parts
        return f"{sum(part.ruling == 'holds' for part in parts)} of {len(parts)}"

    def table_seconds(self, machine: str, label: str, threads: int) -> float:
        """Measured seconds of a step of Table I."""
        (found,) = [
            row.step_seconds
            for row in self.f.cells(GUIDE, machine)
            if row.figure == "table-1" and row.label.startswith(f"{label}:") and row.threads == threads
        ]
        assert found is not None
        return found

    def saved_share(self, framework: str) -> float:
        return 1 - self.step_of("multi-gpu", framework, 2) / self.step_of("multi-gpu", framework, 1)

    def saved(self, framework: str) -> str:
        """The share of the time that a second GPU saves, by forecast."""
        return self.f.ahead.saved("multi-gpu", framework, 1, 2).replace("%", " %")

    def board_factor(self, machine: str) -> float:
        """The published time over the forecast, at the median of a board's rows."""
        kept = json.loads(_BOARDS.read_text(encoding="utf-8"))["summaries"]
        (summary,) = [each for each in kept if each["machine"] == machine]
        return float(1 / (1 + summary["forecast"]["bias"]))

    def accuracy(self, name: str) -> dict[str, Any]:
        """How forecasts of an H200 were judged."""
        judged = json.loads(_ACCURACY.read_text(encoding="utf-8"))["h200"]["judgements"]
        (found,) = [each for each in judged if each["name"] == name and each["section"] == "all"]
        errors: dict[str, Any] = found["errors"]
        return errors


def _staleness(value: float) -> str:
    return plain(value) if value else "0"
