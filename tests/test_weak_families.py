"""The script that times ops which a plain probe seldom draws: its cases, its file, and its table."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from windtunnel.calibration import clock, probe, rows
from windtunnel.calibration.case_sampler import all_weights
from windtunnel.trace.record import Observer

PATH = Path(__file__).parent.parent / "benchmarks" / "weak_families.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("weak_families", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names() -> list[str]:
    """Read without the script, which imports PyTorch."""
    text = PATH.read_text(encoding="utf-8").partition("SHARES")[2].partition("}")[0]
    return [line.split('"')[1] for line in text.splitlines() if '":' in line]


EACH = pytest.mark.parametrize("name", names())


def test_every_kind_that_only_a_gpu_draws_gets_time(script: Any) -> None:
    assert names() == list(script.SHARES)
    assert set(all_weights("gpu")) - set(all_weights("cpu")) <= set(script.SHARES) <= set(all_weights("gpu"))


@EACH
def test_a_case_runs_forward_and_backward(script: Any, name: str) -> None:
    """On a CPU with small sizes, so that no kind fails for the first time on a GPU."""
    pool, ran = clock.Pool("cpu", script.SMALL.elements + 2**15), 0
    for case in itertools.islice(script.draw_cases(script.SMALL, name, 3), 8):
        try:
            script.run_once(pool, case)
            ran += 1
        except NotImplementedError:  # some number formats on a CPU
            continue
    assert ran >= 3


@EACH
def test_a_case_of_full_size_is_described_as_one_op(script: Any, name: str) -> None:
    """Forward, and backward if it has one; the sizes are those that a GPU gets."""
    with Observer("gpu") as observer:
        for case in itertools.islice(script.draw_cases(script.LIMITS, name, 3), 5):
            assert case.elements <= script.LIMITS.elements
            ops = observer.ops_of(lambda case=case: clock.make_empty(case.tensors), case.call)  # type: ignore[misc]
            forward = probe.main_op(case, [op for op in ops if op.phase != "backward"])
            assert forward is not None and forward.family == case.family, name
            if case.has_backward:
                backward = probe.main_op(case, [op for op in ops if op.phase == "backward"])
                assert backward is not None and backward.family == case.family, name


@EACH
def test_the_same_seed_draws_the_same_cases(script: Any, name: str) -> None:
    def some(seed: int) -> list[str]:
        cases = itertools.islice(script.draw_cases(script.LIMITS, name, seed), 6)
        return [script.fingerprint(case) for case in cases]

    assert some(1) == some(1) != some(2)


class FakeClock:
    """A millisecond forward, two backward. The third group breaks the device, as some kernels may."""

    groups = 0

    def __init__(self, elements: int) -> None:
        pass

    def time(self, cases: Any) -> list[clock.Timings]:
        FakeClock.groups += 1
        if FakeClock.groups == 3:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        one, two = (clock.OpTiming(seconds=seconds, kernels=1.0) for seconds in (0.001, 0.002))
        return [(one, two if case.has_backward else None) for case in cases]


def test_timed_cases_survive_a_broken_device_and_become_rows(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.clock, "GpuClock", FakeClock)
    monkeypatch.setattr(script, "_GROUP", 4)
    monkeypatch.setattr(script.torch.cuda, "synchronize", lambda: None)
    FakeClock.groups = 0
    only = ["thin", "bias"]
    with pytest.raises(SystemExit):
        script.time_cases(tmp_path, 60.0, only, 1)
    text = (tmp_path / "timed.jsonl").read_text()
    assert sum("draw" in json.loads(line) for line in text.splitlines()) == 8
    (tmp_path / "timed.jsonl").write_text(text + '{"draw": "thin", "se')  # cut off by a kill
    monkeypatch.setattr(script.time, "monotonic", iter(range(1000)).__next__)  # a second between looks
    script.time_cases(tmp_path, 12, only, 1)
    timed = [json.loads(line) for line in (tmp_path / "timed.jsonl").read_text().splitlines()[13:]]
    begun = {(line["draw"], line["number"]) for line in timed if "draw" in line}
    assert begun and not begun & {("thin", number) for number in range(4)}, "nothing is timed twice"
    script.write_rows(tmp_path, tmp_path / "h200-weak.csv.gz")
    table = rows.load(tmp_path / "h200-weak.csv.gz")
    assert {row.family for row in table} == {"matmul", "streaming"}
    assert all(row.seconds == 0.001 for row in table)
