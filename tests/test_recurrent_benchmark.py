"""The fused engine's rows: how they are measured, and what docs/findings.md makes of them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import fused_figures  # noqa: E402
import kernel_parts  # noqa: E402
import recurrent  # noqa: E402


def row(variant: str, n_rec: int, n_steps: int, *microseconds: float) -> dict[str, Any]:
    sizes = {"n_rec": n_rec, "n_steps": n_steps, "flop": 1000.0 * n_steps, "variant": variant, "apart": 1e-7}
    return {**sizes, "step_seconds": [us * 1e-6 for us in microseconds]}


@pytest.fixture
def rows(tmp_path: Path) -> fused_figures.Rows:
    """Two narrow cells and a wide one, by hand. The peak is 1e9 flop/s: 10 timesteps need 10 us."""
    path = tmp_path / "rows.json"
    many = {"networks": 8, "examples": 10, "alone_seconds": [1e-4, 2e-4], "together_seconds": [1.5e-4, 2e-4]}
    cells = [
        row("fused:epoch", 10, 10, 20, 40, 30),
        row("torch:module-graph", 10, 10, 80, 80, 90),  # 4, 2 and 3 times the fused time
        row("torch:graph", 10, 10, 200, 200, 200),
        row("fused:epoch", 10, 110, 130, 130, 130),
        row("torch:module-graph", 10, 110, 1300, 1300, 1300),
        row("fused:epoch", 200, 20, 50, 50, 50),
        row("jax:scan", 200, 20, 60, 60, 60),
    ]
    path.write_text(json.dumps({"peak_flop_rate": 1e9, "device": "H200", "many": many, "rows": cells}))
    return fused_figures.Rows(path)


class TestFigures:
    def test_a_speedup_is_the_median_of_the_ratios_within_each_round(self, rows: fused_figures.Rows) -> None:
        """The ratio of the medians would be 80 / 30 = 2.7."""
        assert rows.speedup((10, 10)) == pytest.approx(3.0) and rows.best((10, 10)) == "torch:module-graph"
        assert rows.speedups() == "3.0 to 10" and rows.speedups_over("torch:graph") == "6.7"

    def test_arithmetic_is_the_flop_of_a_cell_at_the_peak(self, rows: fused_figures.Rows) -> None:
        """30 us at 10 x 10, where 10,000 flop take 10 us; 1,000 flop of a timestep take 1 us."""
        assert rows.over_arithmetic((10, 10)) == pytest.approx(3.0)
        assert rows.arithmetic_of_a_timestep(10) == pytest.approx(1e-6)

    def test_a_failed_variant_is_named_with_its_sizes(self, rows: fused_figures.Rows) -> None:
        assert not rows.failures
        rows.file["failures"] = [
            {"variant": variant, "n_rec": n_rec, "n_steps": 20, "failed": "an error"}
            for n_rec in (1000, 2000)
            for variant in ("torch:graph", "jax:scan")
        ]
        assert rows.not_measured() == (
            "JAX, a step a call at 1,000 and 2,000 units; graph of the loop at 1,000 and 2,000 units"
        )

    def test_wide_networks_are_in_a_table_of_their_own(self, rows: fused_figures.Rows) -> None:
        assert rows.narrow() == [(10, 10), (10, 110)] and rows.wide_table()[1][1].startswith("1.20x (JAX")
        assert rows.best_others() == "graph of `nn.RNN` in 2 of 2 cells"
        assert rows.many_ratio() == "1.25"

    def test_a_part_of_the_kernel_costs_the_slope_between_few_and_many_timesteps(
        self, tmp_path: Path, rows: fused_figures.Rows
    ) -> None:
        path = tmp_path / "parts.json"
        seconds = {"10": [3e-6, 4e-6, 3e-6], "100": [12e-6, 13e-6, 12e-6]}
        faster = {"10": [3e-6], "100": [9.75e-6]}
        cases = {"nothing": seconds, "barriers": faster}
        path.write_text(
            json.dumps(
                {"rows": [{"n_rec": 10, "without": k, "example_seconds": v} for k, v in cases.items()]}
            )
        )
        parts = fused_figures.Parts(path)
        assert parts.line(10, "nothing") == pytest.approx((1e-7, 2e-6))  # 100 ns and 2 us
        assert parts.saved(10, "barriers") == parts.most_saved(10) == "25 %"
        assert parts.table(rows)[1:4] == [
            ["a timestep, forward and backward", "100 ns"],
            ["its arithmetic alone", "1000 ns"],
            ["without the barriers", "75 ns"],
        ]


def test_every_part_that_is_taken_out_is_in_the_kernel() -> None:
    whole = kernel_parts.source_without("nothing")
    others = [kernel_parts.source_without(part) for part in kernel_parts.PARTS if part != "nothing"]
    assert whole == kernel_parts.KERNEL.read_text() and whole not in others


class Silent(recurrent.Worker):
    """A worker without a process, which takes 1 ms a step."""

    def __init__(self) -> None:
        self.variant, self.device = "torch:loop", "cpu"

    def ask(self, **request: Any) -> dict[str, Any]:
        return {"wall": 1e-3 * request["steps"], "cpu": 0.0}


class TestRun:
    def test_a_variant_with_other_losses_is_refused(self) -> None:
        reply = {"losses": [1.0, 0.5], "per": 1, "build_seconds": 1.0}
        assert recurrent.prepared(Silent(), 0, reply, [1.0, 0.5001])["apart"] == pytest.approx(2e-4, rel=1e-2)
        for wrong in ([1.0, 0.51], [1.0, float("nan")]):
            with pytest.raises(recurrent.VariantFailed, match="instead of"):
                recurrent.prepared(Silent(), 0, {**reply, "losses": wrong}, [1.0, 0.5])

    def test_a_round_has_whole_epochs_and_lasts_its_time(self) -> None:
        assert recurrent.steps_of_round(Silent(), 0, per=1) == 50  # of 1 ms, in 0.05 s
        assert recurrent.steps_of_round(Silent(), 0, per=20) == 40
        assert recurrent.steps_of_round(Silent(), 0, per=100) == 100

    @pytest.mark.skipif(importlib.util.find_spec("llvmlite") is None, reason="needs llvmlite")
    def test_a_run_writes_every_sample_with_versions_and_date(self, tmp_path: Path) -> None:
        to = tmp_path / "rows.json"
        words = ["--cells", "10x10,12x5", "--rounds", "2", "--variants", "fused:epoch,numpy:hand"]
        script = str(ROOT / "benchmarks" / "recurrent.py")
        subprocess.run([sys.executable, script, *words, "--to", str(to)], check=True, capture_output=True)
        file = json.loads(to.read_text())
        assert [(r["n_rec"], r["n_steps"], r["variant"]) for r in file["rows"]] == [
            (n, t, variant) for n, t in ((10, 10), (12, 5)) for variant in ("fused:epoch", "numpy:hand")
        ]
        assert all(len(r["step_seconds"]) == 2 and min(r["step_seconds"]) > 0 for r in file["rows"])
        assert all(r["apart"] < 1e-4 for r in file["rows"]) and not file["failures"]
        assert file["measured_at"] and file["versions"]["numpy:hand"]["numpy"]
