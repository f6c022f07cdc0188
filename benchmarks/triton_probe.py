"""Time kernels that torch.compile generates, and what its compiled code costs the host, on a GPU.

    python benchmarks/triton_probe.py collect FOLDER [--seconds 200] [--workers 8]     (needs a GPU)
    python benchmarks/triton_probe.py rows FOLDER benchmarks/probes/h200-generated.csv.gz
    python benchmarks/triton_probe.py launches FOLDER [--host-factor 1.13]

`collect` needs PyTorch with CUDA and Triton, and takes about --seconds in all. It writes
FOLDER/kernels.jsonl and FOLDER/launches.jsonl: a header, then a line for each case. Cases are random and from
no network. Worker processes compile first, into a cache that all share; then one process times, with nothing
else running. FOLDER/h200-channels-last.csv.gz has convolutions of channels-last images, the layout that
torch.compile gives to most networks of convolutions; it is a table for benchmarks/probes as it is.

`rows` needs no GPU: it asks the compiler here which kernels each case has, and writes each timed kernel as a
row of a probe. `python benchmarks/refit.py h200 generated` then learns their prices. `launches` fits what the
host pays, and prints the lines for the catalogue's launch_costs.toml.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType

from windtunnel.calibration import probe
from windtunnel.calibration import rows as tables
from windtunnel.calibration.generated import KINDS, Case, describe, draw, fit_launch_costs, make_tensors
from windtunnel.families.drawing import ProbeCase
from windtunnel.machine.machine import LaunchCosts, Machine

_REPEATS = 7
# Shares of the seconds: compile, time generated kernels, time channels-last convolutions; the rest is for the
# host's costs.
_COMPILING, _TIMING, _CONVOLVING = 0.3, 0.3, 0.1
_CONVOLUTIONS = {"convolution": 6, "depthwise": 2, "grouped": 1, "square": 1}
_CASES = 1000


# --- collecting, on a GPU -------------------------------------------------------------------------------


def collect(folder: Path, seconds: float, workers: int) -> None:
    """Compile in many processes, then time in this one."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{scratch}/cache"
        _compile_all(Path(scratch), seconds * _COMPILING, workers)
        _write(folder / "kernels.jsonl", _timed_lines(Path(scratch), seconds * _TIMING))
        rows = probe.probe_gpu(seconds * _CONVOLVING, weights=_CONVOLUTIONS, wanted=_is_channels_last)
        tables.save(folder / "h200-channels-last.csv.gz", rows)
        _write(folder / "launches.jsonl", _launch_lines(lambda: time.perf_counter() < begin + seconds))


def _timed_lines(scratch: Path, seconds: float) -> Iterator[dict[str, object]]:
    """The cases that were compiled, timed one after another until the seconds are over."""
    until = time.perf_counter() + seconds
    numbers = sorted(int(word) for path in scratch.glob("done-*") for word in path.read_text().split())
    cases = draw(_CASES)
    return (_timed_line(cases[number]) for number in numbers if time.perf_counter() < until)


def _is_channels_last(case: ProbeCase) -> bool:
    return any(spec.channels_last for spec in case.tensors)


def _compile_all(scratch: Path, seconds: float, workers: int) -> None:
    """Each worker compiles every so-many-th case and notes which are done."""
    own = [sys.executable, __file__, "compile", str(scratch), "--seconds", str(seconds)]
    alone = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # the workers are parallel already
    started = [
        subprocess.Popen([*own, "--part", str(part), "--workers", str(workers)], env=alone)
        for part in range(workers)
    ]
    for process in started:
        process.wait()


def compile_part(scratch: Path, seconds: float, part: int, workers: int) -> None:
    """Compile this worker's cases until the time is over."""
    until = time.perf_counter() + seconds
    with (scratch / f"done-{part}").open("w", encoding="utf-8") as file:
        for number, case in enumerate(draw(_CASES)):
            if number % workers == part and time.perf_counter() < until and _runs(case):
                print(number, file=file, flush=True)


def _runs(case: Case) -> bool:
    """Compile a case and run it once; a case that fails is named and left out."""
    try:
        _compiled(case)()
        torch.cuda.synchronize()
    except Exception as error:
        print(f"{case} left out: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        return False
    return True


def _compiled(case: Case) -> Callable[[], Any]:
    """A call of the compiled case on new tensors, without gradients."""
    torch._dynamo.reset()
    tensors, compiled = make_tensors(case, "cuda"), torch.compile(KINDS[case.kind][0], dynamic=False)

    def call() -> Any:
        with torch.no_grad():
            return compiled(*tensors)

    return call


def _write(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    header = {
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d"),
    }
    with path.open("w", encoding="utf-8") as file:
        print(json.dumps(header), file=file)
        for line in lines:
            print(json.dumps(line), file=file, flush=True)


def _timed_line(case: Case) -> dict[str, object]:
    """A case and its kernels in the order of their launches, each with the median of its seconds."""
    call = _compiled(case)
    call()
    return {"case": dataclasses.asdict(case), "kernels": by_position(_kernels(call, _REPEATS), _REPEATS)}


def by_position(events: Sequence[tuple[str, float]], calls: int) -> list[dict[str, object]]:
    """The kernels of one call with the medians of their seconds, from those of so many equal calls; nothing
    if the calls were not equal."""
    each, rest = divmod(len(events), calls)
    if rest or any(events[n][0] != events[n % each][0] for n in range(len(events))):
        return []
    return [
        {
            "name": events[place][0],
            "seconds": statistics.median(seconds for _, seconds in events[place::each]),
        }
        for place in range(each)
    ]


def _kernels(call: Callable[[], Any], calls: int = 1) -> list[tuple[str, float]]:
    """Names and seconds of the kernels of some calls in their order, by the profiler's record."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    found = recorded.profiler.kineto_results.events()
    events = [e for e in found if e.device_type() == DeviceType.CUDA]
    return [(e.name(), e.duration_ns() / 1e9) for e in sorted(events, key=lambda e: e.start_ns())]


# --- the host's costs -----------------------------------------------------------------------------------


class _Block(torch.nn.Module):
    """A small product, if it has a weight, then functions that share no kernel: they sum along other
    dimensions."""

    def __init__(self, products: int, sums: int) -> None:
        super().__init__()
        self.products = torch.nn.ModuleList([torch.nn.Linear(32, 32, bias=False) for _ in range(products)])
        self.sums = sums

    def forward(self, x: Tensor) -> Tensor:
        for product in self.products:
            x = product(x)
        for number in range(self.sums):
            x = torch.softmax(x, number % 2)
        return x


def launch_networks() -> Iterator[tuple[str, torch.nn.Module, int]]:
    """Names, networks and numbers of regions: products only, generated kernels only, both, many regions.

    The order is such that whatever fits into the time says something of every cost.
    """
    for blocks in (12, 36, 3):
        for products, sums in ((1, 1), (1, 0), (0, 1), (1, 3)):
            network = torch.nn.Sequential(*(_Block(products, sums) for _ in range(blocks)))
            yield f"{blocks} blocks of {products} products and {sums} sums", network, 1
        regions = max(2, blocks // 3)
        network = torch.nn.Sequential(*(_Block(1, 1) for _ in range(regions)))
        yield f"{regions} regions", network, regions


def _launch_lines(is_time: Callable[[], bool]) -> Iterator[dict[str, object]]:
    for name, network, regions in launch_networks():
        has_weights = any(True for _ in network.parameters())
        for trains in (False, True) if has_weights else (False,):
            if is_time():
                yield time_network(name, network.to("cuda"), regions, trains)


def time_network(name: str, network: torch.nn.Module, regions: int, trains: bool) -> dict[str, object]:
    """Host seconds of one call of compiled regions (and of its backward), and what it launches."""
    torch._dynamo.reset()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(32, 32, device=device)
    parts = [network] if regions == 1 else list(network.children())
    compiled = [torch.compile(part, dynamic=False) for part in parts]

    def call() -> None:
        y = x
        for part in compiled:
            y = part(y)
        if trains:
            network.zero_grad(set_to_none=True)
            y.sum().backward()  # type: ignore[no-untyped-call]

    with torch.set_grad_enabled(trains):
        seconds = _host_seconds(call, device)
        names = [kernel for kernel, _ in _kernels(call)] if device == "cuda" else []
    generated = sum(kernel.startswith("triton_") for kernel in names)
    return {
        "name": name,
        "trains": trains,
        "generated": generated,
        "library": len(names) - generated,
        "weights": len(list(network.parameters())),
        "regions": regions * (2 if trains else 1),
        "seconds": seconds,
    }


def _host_seconds(call: Callable[[], None], device: str) -> float:
    """The median of how long the host takes to issue a call; it never waits for the device meanwhile."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for _ in range(5):
        call()
    samples = []
    for _ in range(15):
        wait()
        begin = time.perf_counter()
        for _ in range(4):
            call()
        samples.append((time.perf_counter() - begin) / 4)
    return statistics.median(samples)


# --- from rows to a probe's table, without a GPU --------------------------------------------------------


def write_rows(folder: Path, table: Path) -> None:
    lines = read_lines(folder / "kernels.jsonl")
    rows, left_out = describe(lines)
    if not rows:
        raise SystemExit(f"{folder / 'kernels.jsonl'} has no case that the compiler here makes alike.")
    tables.save(table, rows)
    print(f"{len(rows)} kernels of {len(lines)} cases written to {table}; {left_out} cases left out.")


def print_launch_costs(folder: Path, host_factor: float) -> None:
    costs = launch_costs("h200")
    found = fit_launch_costs(
        read_lines(folder / "launches.jsonl"),
        costs.node_seconds * host_factor,
        costs.backward_seconds * host_factor,
    )
    print(f"# [gpu.forward] of launch_costs.toml, for a host that was {host_factor} times as slow")
    for name, seconds in found.items():
        print(f'"{name}" = "{seconds / host_factor * 1e6:.3g} us"')


def launch_costs(machine: str) -> LaunchCosts:
    found = Machine.named(machine).launch_costs
    assert found is not None
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All rows of a file that `collect` wrote, without its header."""
    if not path.is_file():
        raise SystemExit(
            f"{path} does not exist. Run `triton_probe.py collect` on a machine with a GPU first."
        )
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("collect", "compile", "rows", "launches"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--host-factor", type=float, default=1.0, help="by a host probe of the same hour")
    parser.add_argument("--part", type=int, default=0)
    options = parser.parse_args()
    if options.verb in ("collect", "compile") and not torch.cuda.is_available():
        raise SystemExit(f"{options.verb} needs a GPU; PyTorch sees none here.")
    if options.verb == "collect":
        collect(options.folder, options.seconds, options.workers)
    elif options.verb == "compile":
        compile_part(options.folder, options.seconds, options.part, options.workers)
    elif options.verb == "launches":
        print_launch_costs(options.folder, options.host_factor)
    elif options.table is None:
        raise SystemExit("rows needs the table to write: triton_probe.py rows FOLDER TABLE.csv.gz")
    else:
        write_rows(options.folder, options.table)


if __name__ == "__main__":
    main()
