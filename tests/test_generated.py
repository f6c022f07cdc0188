"""Kernels that torch.compile generates: from timed cases to the prices of a forecast. No GPU is needed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import windtunnel as wt
from windtunnel.calibration import fit, generated, rows
from windtunnel.calibration.clock import OpTiming
from windtunnel.calibration.generated import KINDS, Case, describe, draw, fit_launch_costs
from windtunnel.calibration.probe import ProbeRow, row_of
from windtunnel.errors import BadInput
from windtunnel.families.base import GENERATED
from windtunnel.forecast.price import Pricer, roofline_of
from windtunnel.machine import profiles
from windtunnel.trace import Compilation, Op, Trace

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "triton_probe.py"
SUM = Case(kind="column sum", rows=20_000, columns=512, dtype="bf16", inputs=2)
SIMPLE = Case(kind="pointwise", rows=1000, columns=512, dtype="fp32", inputs=3)


def timed(case: Case, *seconds: float) -> dict[str, Any]:
    """A line as the probe writes it: the case, and a kernel of so many seconds each."""
    kernels = [{"name": f"triton_poi_fused_{n}", "seconds": each} for n, each in enumerate(seconds)]
    return {"case": dataclasses.asdict(case), "kernels": kernels}


@pytest.fixture(scope="module")
def described() -> tuple[list[ProbeRow], int]:
    """A sum over many rows takes two kernels; the last case was timed with one more than it has here."""
    return describe([timed(SIMPLE, 3e-6), timed(SUM, 9e-6, 2e-6), timed(SIMPLE, 1e-6, 1e-6)])


def test_each_timed_kernel_becomes_a_row_with_its_own_bytes(described: tuple[list[ProbeRow], int]) -> None:
    table, left_out = described
    assert left_out == 1
    assert [row.seconds for row in table] == [3e-6, 9e-6, 2e-6]
    simple, large, small = table
    assert (simple.name, simple.shape) == (f"{GENERATED}.pointwise", (512_000, 0, 3))
    assert (simple.read_bytes, simple.written_bytes) == (3 * 512_000 * 4, 512_000 * 4)
    assert large.family == small.family == "reduction"
    assert large.read_bytes == 2 * 20_000 * 512 * 2, "the first kernel reads both tensors"
    assert small.read_bytes == large.written_bytes, "the second reads what the first has written"


def test_rows_survive_being_written(described: tuple[list[ProbeRow], int], tmp_path: Path) -> None:
    rows.save(tmp_path / "t.csv.gz", described[0])
    assert [(row.name, row.shape) for row in rows.load(tmp_path / "t.csv.gz")] == [
        (row.name, row.shape) for row in described[0]
    ]


def kernel(elements: int) -> Op:
    return Op(
        name=f"{GENERATED}.pointwise",
        family="streaming",
        phase="forward",
        dtype="bf16",
        flop=float(elements),
        read_bytes=4.0 * elements,
        written_bytes=2.0 * elements,
        shape=(elements, 0, 2),
    )


def compiled_trace(*ops: Op, nodes: int = 0) -> Trace:
    return Trace(
        job="case",
        batch=1,
        target="gpu",
        precision="bf16",
        ops=ops,
        allocations={},
        held=(),
        batch_bytes=0.0,
        parameters=1,
        module_calls=1,
        nodes=nodes,
        backward_calls=1,
        update_calls=1,
        torch="2.11",
        compilation=Compilation(graphs=2, breaks=0, nodes=1, inputs=1),
    )


def test_timed_kernels_decide_the_price_of_generated_kernels_and_of_no_others() -> None:
    """Rows that take 3 times the roofline: so does the price, whatever PyTorch's own kernels take."""
    h200, strategy = wt.Machine.named("h200"), wt.Strategy(batch=1, execution="compiled")
    known = profiles.profile_for(h200)
    own = {name: kind for name, kind in known.kinds.items() if not name.endswith(GENERATED)}
    profile = dataclasses.replace(known, kinds=own)  # as if no generated kernel had been timed
    roofline = roofline_of(h200, profile)
    ops = [kernel(1 << (10 + n % 18)) for n in range(90)]
    table = [
        row_of(op, OpTiming(seconds=3.0 * roofline.seconds(generated_piece(op))), op.dtype, threads=1)
        for op in ops
    ]
    kinds = fit.fit_kinds(table, {1: roofline}, fit.Effort(few=60, depth=3))
    assert set(kinds) == {f"streaming {GENERATED}"}
    probed = dataclasses.replace(profile, kinds={**profile.kinds, **kinds})
    large = kernel(1 << 24)
    plain = dataclasses.replace(large, name="aten.add")
    trace = compiled_trace(large, plain)
    before, after = (Pricer(h200, strategy, trace, each).price(trace.ops) for each in (profile, probed))
    assert after[0].device_seconds == pytest.approx(3.0 * roofline.seconds(generated_piece(large)), rel=0.05)
    assert before[0].device_seconds == before[1].device_seconds == after[1].device_seconds


def generated_piece(op: Op) -> Any:
    from windtunnel.families import pieces_of

    return pieces_of(op, 132)[0]


def test_the_costs_of_compiled_code_are_found_again() -> None:
    """Calls that cost 30 us a generated kernel, 10 a library call, 100 a region; in training, 5 a weight and
    300 a backward beside. A network of w products calls 3 w - 1 of them in training, w in inference. In
    inference a generated kernel costs 8 us."""
    lines = []
    for kernels, weights, regions in ((0, 24, 1), (24, 0, 1), (24, 24, 2), (72, 24, 1), (8, 80, 16)):
        inference = 8e-6 * kernels + 10e-6 * weights + 100e-6 * regions
        calls = max(0, 3 * weights - 1)
        training = 30e-6 * kernels + 10e-6 * calls + 5e-6 * weights + 100e-6 * regions + 300e-6
        counts = {"generated": kernels, "weights": weights, "regions": regions}
        lines += [{**counts, "trains": False, "seconds": inference}]
        lines += [{**counts, "trains": True, "seconds": training}]
    costs = fit_launch_costs([*lines, {"name": "left out"}], 5e-6, 300e-6)
    expected = {"generated": 30e-6, "library": 10e-6, "region": 100e-6, "generated inference": 8e-6}
    assert costs == {name: pytest.approx(seconds, rel=1e-6) for name, seconds in expected.items()}
    with pytest.raises(BadInput, match="0 calls"):
        fit_launch_costs([], 5e-6, 300e-6)


def test_the_stored_timings_give_the_costs_of_the_catalogue() -> None:
    table = wt.Machine.named("h200").launch_costs
    assert table is not None
    folder = Path(__file__).resolve().parents[1] / "benchmarks/compiled"
    lines = [json.loads(line) for line in (folder / "h200-launches.jsonl").read_text().splitlines()[1:]]
    factor = 1.13  # of that host
    costs = fit_launch_costs(lines, table.node_seconds * factor, table.backward_seconds * factor)
    for name, seconds in costs.items():
        assert table.forward[name] == pytest.approx(seconds / factor, rel=0.01), name


def test_probed_costs_of_regions_and_weights_reach_the_price() -> None:
    h200, strategy = wt.Machine.named("h200"), wt.Strategy(batch=1, execution="compiled")
    assert h200.launch_costs is not None
    backward = dataclasses.replace(kernel(1000), phase="backward")
    trace, profile = compiled_trace(kernel(1000), backward, nodes=10), profiles.profile_for(h200)

    def host_seconds(**costs: float) -> float:
        assert h200.launch_costs is not None
        forward = {**h200.launch_costs.forward, **costs}
        machine = dataclasses.replace(
            h200, launch_costs=dataclasses.replace(h200.launch_costs, forward=forward)
        )
        return sum(price.host_seconds for price in Pricer(machine, strategy, trace, profile).price(trace.ops))

    assert host_seconds(weight=2e-5) - host_seconds(weight=1e-5) == pytest.approx(10 * 1e-5)
    # A region is entered once forward and once backward.
    assert host_seconds(region=2e-4) - host_seconds(region=1e-4) == pytest.approx(2 * 1e-4)


def test_cases_are_of_every_kind_and_fit_into_memory() -> None:
    cases = draw(10 * len(KINDS))
    assert {case.kind for case in cases} == set(KINDS) and len(set(cases)) == len(cases)
    assert cases == draw(10 * len(KINDS)), "workers and the clock must draw the same"
    for case in cases:
        size = case.rows * case.columns * case.side**2 * generated.DTYPES[case.dtype].itemsize
        assert size * (case.inputs + 1) <= 2e9


def test_kernels_of_equal_calls_are_put_together_by_their_place() -> None:
    """Two kernels, three calls: the medians of 1, 9, 2 and of 5, 6, 7."""
    spec = importlib.util.spec_from_file_location("triton_probe", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    events = [("a", 1.0), ("b", 5.0), ("a", 9.0), ("b", 6.0), ("a", 2.0), ("b", 7.0)]
    assert script.by_position(events, 3) == [{"name": "a", "seconds": 2.0}, {"name": "b", "seconds": 6.0}]
    assert script.by_position(events[:-1], 3) == [] == script.by_position([*events[:-1], ("c", 1.0)], 3)
    assert {regions for _, _, regions in script.launch_networks()} >= {1, 4}


def test_the_script_says_what_it_needs(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=900
        )

    done = run("launches", str(tmp_path))
    assert done.returncode != 0 and "collect" in done.stderr and "Traceback" not in done.stderr
    lines = [
        {"generated": 10, "weights": 10, "regions": 1, "trains": number % 2 > 0, "seconds": 1e-3}
        for number in range(6)
    ]
    (tmp_path / "launches.jsonl").write_text("\n".join(json.dumps(each) for each in ({}, *lines)))
    done = run("launches", str(tmp_path))
    assert done.returncode == 0 and '"generated" = "' in done.stdout and '"region" = "' in done.stdout
