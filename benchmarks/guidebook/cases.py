"""Every forecast that the guide quotes, by a name. `numbers.py` computes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from windtunnel.strategy import Strategy

CPU, GPU = "ryzen-9-5950x", "rtx4090"  # the guide's desktop
OLD_CPU, OLD_GPU = "i7-3820", "gtx1080"  # the processors that the guide of 2018 names
NETWORKS = (
    *("ffn", "autoencoder", "rbm", "vae", "dbn", "gan", "rnn", "lstm", "dcn", "deconv", "recursive"),
    *("fcn5", "alexnet", "googlenet", "vgg16", "resnet18", "resnet50", "unet", "gpt2", "bert", "vit"),
)
FED = ("ffn", "lstm", "fcn5", "alexnet", "googlenet", "resnet50", "gpt2")
OLD_FED = ("ffn", "lstm", "fcn5", "alexnet", "googlenet", "resnet50")
WIDTHS = (16, 64, 256, 1024, 4096, 16384)
UNITS = (10, 50, 100, 200, 500, 1000, 2000, 5000)
BATCHES = (1, 4, 16, 64, 256)
SEQUENCES = (1, 16, 256, 1024, 4096)  # in a batch of a recurrent network
MODERN: Mapping[str, object] = {"precision": "bf16", "layout": "channels_last"}
PACKED = 1000  # examples in one record file
LLAMA: Mapping[str, object] = {"layers": 32, "width": 4096, "heads": 32, "inner": 11008}
SMALL = ("raspberry-pi-5", "jetson-orin-nano", CPU, GPU)
DRIVES = (
    *("hard-disk-seagate-barracuda-xt-2tb", "sata-ssd-samsung-860-evo", "samsung-960-pro"),
    *("5x-samsung-960-pro", "dgx-a100-nvme"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One forecast: a job with settings, a machine (with another drive, if named), a strategy, and how many
    examples lie in one file."""

    job: str
    machine: str
    settings: Mapping[str, object] = field(default_factory=dict)
    strategy: Strategy = field(default_factory=Strategy)
    storage: str = ""
    packed: int = 1


def cases() -> dict[str, Case]:
    """All of them."""
    found = dict[str, Case]()
    for part in (_one_job, _networks, _cpu, _gpu, _several, _ways, _feeds, _memory, _recurrent, _use):
        for name, case in part():
            assert name not in found, name
            found[name] = case
    return found


Cases = Iterator[tuple[str, Case]]


def _one_job() -> Cases:
    """ResNet-50, the job that goes through the whole guide, from a CPU to 64 GPUs."""
    rows: tuple[tuple[str, dict[str, object]], ...] = (
        (OLD_CPU, {"batch": 64}),
        (CPU, {"batch": 64}),
        (OLD_GPU, {"batch": 64}),
        (GPU, {"batch": 128, **MODERN}),
        ("h200", {"batch": 256, **MODERN}),
        ("8xh200", {"batch": 2048, **MODERN}),
        ("8x8xh200", {"batch": 16384, **MODERN}),
    )
    for machine, fields in rows:
        yield f"job.{machine}", Case(job="resnet50", machine=machine, strategy=Strategy(**fields))  # type: ignore[arg-type]


def _networks() -> Cases:
    for name in NETWORKS:
        yield f"net.{name}.cpu", Case(job=name, machine=CPU)
        yield f"net.{name}.gpu", Case(job=name, machine=GPU)
    for width in WIDTHS:
        for kind, machine in (("cpu", CPU), ("gpu", GPU)):
            yield f"nodes.{kind}.{width}", Case(job="ffn", machine=machine, settings={"hidden": width})
    for layers in (1, 2, 4, 8):
        yield f"layers.cpu.{layers}", Case(job="ffn", machine=CPU, settings={"layers": layers})


def _cpu() -> Cases:
    yield "init.ffn.guide", Case(job="ffn", machine=CPU, settings={"init": "guide"})
    for threads in (1, 2, 4):
        strategy = Strategy(threads=threads)
        yield f"threads.old.{threads}", Case(job="fcn5", machine=OLD_CPU, strategy=strategy)
    for threads in (1, 2, 4, 8, 16):
        for job in ("fcn5", "ffn", "resnet50", "rnn"):
            strategy = Strategy(threads=threads)
            yield f"threads.{job}.{threads}", Case(job=job, machine=CPU, strategy=strategy)
    for job in ("ffn", "resnet18"):
        for batch in BATCHES:
            yield f"cpu-batch.{job}.{batch}", Case(job=job, machine=CPU, strategy=Strategy(batch=batch))


def _gpu() -> Cases:
    for name in FED:
        yield f"gpu.{name}.streamed", Case(job=name, machine=GPU, strategy=Strategy(data="streamed"))
        ahead = Strategy(data="streamed", prefetch=2)
        yield f"gpu.{name}.prefetched", Case(job=name, machine=GPU, strategy=ahead)
    for execution in ("graph", "compiled"):
        strategy = Strategy(execution=execution)  # type: ignore[arg-type]
        yield f"gpu.ffn.{execution}", Case(job="ffn", machine=GPU, strategy=strategy)
    copied = Strategy(batch=256, precision="bf16", data="streamed")
    yield "bound.copy", Case(job="alexnet", machine=GPU, strategy=copied)
    for name in OLD_FED:
        yield f"old.{name}.cpu", Case(job=name, machine=OLD_CPU)
        yield f"old.{name}.resident", Case(job=name, machine=OLD_GPU)
        yield f"old.{name}.streamed", Case(job=name, machine=OLD_GPU, strategy=Strategy(data="streamed"))
    for batch in BATCHES:
        yield f"batch.resnet50.{batch}", Case(job="resnet50", machine=GPU, strategy=Strategy(batch=batch))
        yield f"batch.ffn.{batch}", Case(job="ffn", machine=GPU, strategy=Strategy(batch=batch))
        modern = Strategy(batch=batch, **MODERN)  # type: ignore[arg-type]
        yield f"modern.resnet50.{batch}", Case(job="resnet50", machine=GPU, strategy=modern)
    for precision in ("pytorch", "bf16"):
        for layout in ("contiguous", "channels_last"):
            strategy = Strategy(batch=64, precision=precision, layout=layout)  # type: ignore[arg-type]
            yield f"format.{precision}.{layout}", Case(job="resnet50", machine=GPU, strategy=strategy)


def _several() -> Cases:
    """One batch divided among more and more GPUs; then more and more nodes with the same batch on each."""
    for kind, batch in (("resnet50", 256), ("alexnet", 256)):
        for card in (GPU, "h200"):
            for count in (1, 2, 4, 8):
                machine = card if count == 1 else f"{count}x{card}"
                strategy = Strategy(batch=batch, precision="bf16")
                yield f"gpus.{kind}.{card}.{count}", Case(job=kind, machine=machine, strategy=strategy)
    for count in (2, 4, 8):
        strategy = Strategy(batch=256, precision="bf16", exchange="after")
        for kind in ("resnet50", "alexnet"):
            name = f"after.{kind}.{GPU}.{count}"
            yield name, Case(job=kind, machine=f"{count}x{GPU}", strategy=strategy)
    for nodes in (1, 2, 4, 8, 16, 32):
        machine = "8xh100" if nodes == 1 else f"{nodes}x8xh100"
        strategy = Strategy(batch=8 * 8 * nodes, precision="bf16")
        yield f"nodes-of-8.gpt2.{nodes}", Case(job="gpt2", machine=machine, strategy=strategy)


def _ways() -> Cases:
    """A language model of 6.7 billion weights on eight GPUs, divided in every way."""
    ways: dict[str, dict[str, object]] = {
        "data": {},
        "optimizer": {"shard": "optimizer"},
        "gradients": {"shard": "gradients"},
        "weights": {"shard": "weights"},
        "tensor": {"tensor_parallel": 8},
        "pipeline": {"pipeline_parallel": 8, "accumulate": 8},
        "mixed": {"tensor_parallel": 4, "pipeline_parallel": 2, "accumulate": 8},
    }
    for name, fields in ways.items():
        strategy = Strategy(batch=8, precision="bf16", **fields)  # type: ignore[arg-type]
        yield f"ways.{name}", Case(job="llm:llama", machine="8xh100", settings=LLAMA, strategy=strategy)
    for batch in (16, 32):  # the pipeline with more micro-batches
        strategy = Strategy(batch=batch, precision="bf16", pipeline_parallel=8, accumulate=batch)
        case = Case(job="llm:llama", machine="8xh100", settings=LLAMA, strategy=strategy)
        yield f"micro-batches.{batch}", case
    for job in ("alexnet", "resnet50"):
        for name, fields in (("data", {}), ("parts", {"pipeline_parallel": 4, "accumulate": 4})):
            strategy = Strategy(batch=256 if job == "alexnet" else 64, **fields)
            yield f"split.{job}.{name}", Case(job=job, machine=f"4x{OLD_GPU}", strategy=strategy)
    combined = Strategy(batch=16, pipeline_parallel=4, accumulate=4)  # parts over clusters, data inside
    yield "combined.parts", Case(job="gpt2", machine="guide-figure-6", strategy=combined)
    yield "combined.data", Case(job="gpt2", machine="guide-figure-6", strategy=Strategy(batch=16))


def _feeds() -> Cases:
    """ResNet-50 fed from files on a server's GPU."""
    base = {"batch": 256, "precision": "bf16", "layout": "channels_last"}
    for loaders in (0, 1, 2, 4, 8, 16, 32):
        fed = {**base, "data": "page-cache", "loaders": loaders, "prefetch": 2}
        yield f"loaders.{loaders}", Case(job="resnet50", machine="h200", strategy=Strategy(**fed))  # type: ignore[arg-type]
    for place in ("resident", "streamed"):
        fed = {**base, "data": place, "prefetch": 2 if place == "streamed" else 0}
        yield f"place.{place}", Case(job="resnet50", machine="h200", strategy=Strategy(**fed))  # type: ignore[arg-type]
    fed = {**base, "data": "streamed"}
    yield "place.plain", Case(job="resnet50", machine="h200", strategy=Strategy(**fed))  # type: ignore[arg-type]
    for drive in DRIVES:
        fed = {**base, "data": "storage", "loaders": 32, "prefetch": 2}
        strategy = Strategy(**fed)  # type: ignore[arg-type]
        yield f"drive.{drive}", Case(job="resnet50", machine="h200", strategy=strategy, storage=drive)
        case = Case(job="resnet50", machine="h200", strategy=strategy, storage=drive, packed=PACKED)
        yield f"packed.{drive}", case
    whole = {**base, "batch": 2048}
    yield "eight.resident", Case(job="resnet50", machine="8xh200", strategy=Strategy(**whole))  # type: ignore[arg-type]
    for place, drive in (("page-cache", ""), *((drive, drive) for drive in DRIVES)):
        data = "storage" if drive else "page-cache"
        fed = {**whole, "data": data, "loaders": 14, "prefetch": 2}
        strategy = Strategy(**fed)  # type: ignore[arg-type]
        yield f"eight.{place}", Case(job="resnet50", machine="8xh200", strategy=strategy, storage=drive)


def _memory() -> Cases:
    for batch in (16, 32, 64, 128):
        yield f"memory.{batch}", Case(job="resnet50", machine=OLD_GPU, strategy=Strategy(batch=batch))
    remedies: dict[str, dict[str, object]] = {
        "recompute": {"recompute": "blocks"},
        "accumulate": {"accumulate": 4},
        "fp16": {"precision": "fp16"},
        "sgd": {"optimizer": "sgd"},
    }
    for name, fields in remedies.items():
        strategy = Strategy(batch=128, **fields)  # type: ignore[arg-type]
        yield f"memory.{name}", Case(job="resnet50", machine=OLD_GPU, strategy=strategy)


def _recurrent() -> Cases:
    for machine in ("macbook-2016", "k80", "m2090", "e5-2660-v2", CPU, GPU):
        for units in UNITS:
            settings = {"n_rec": units, "n_steps": 20}
            yield f"rnn.{machine}.{units}", Case(job="rnn", machine=machine, settings=settings)
    for machine in ("macbook-2016", "k80", CPU, GPU):
        for steps in (10, 20, 50, 100):
            settings = {"n_rec": 100, "n_steps": steps}
            yield f"steps.{machine}.{steps}", Case(job="rnn", machine=machine, settings=settings)
    for machine in (CPU, GPU):
        for batch in SEQUENCES:
            settings, strategy = {"n_rec": 100, "n_steps": 20}, Strategy(batch=batch)
            case = Case(job="rnn", machine=machine, settings=settings, strategy=strategy)
            yield f"rnn-batch.{machine}.{batch}", case


def _use() -> Cases:
    for machine in ("raspberry-pi-5", "jetson-orin-nano", CPU, GPU, "h200"):
        for batch in (1, 8, 64):
            strategy = Strategy(batch=batch, inference=True)
            yield f"use.{machine}.{batch}", Case(job="resnet50", machine=machine, strategy=strategy)
    for machine in (CPU, GPU, "h200"):
        case = Case(job="resnet50", machine=machine, strategy=Strategy(batch=64))
        yield f"train.{machine}.64", case
    for machine in SMALL:
        for job in ("resnet18", "resnet50", "vit"):
            strategy = Strategy(batch=1, inference=True)
            yield f"small.{job}.{machine}", Case(job=job, machine=machine, strategy=strategy)
    graph = Strategy(batch=1, inference=True, execution="graph")
    yield "use.graph", Case(job="resnet50", machine=GPU, strategy=graph)
    half = Strategy(batch=64, inference=True, **MODERN)  # type: ignore[arg-type]
    yield "use.modern", Case(job="resnet50", machine="h200", strategy=half)
