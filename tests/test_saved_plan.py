"""A plan that was saved is read back as it was; a file of a strategy alone is a plan, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.errors import BadRecord
from windtunnel.saved_plan import SavedPlan
from windtunnel.strategy import Strategy

STRATEGY = Strategy(batch=64, precision="bf16", tensor_parallel=2, sequence_parallel=True)


@pytest.mark.parametrize("name", ["plan.toml", "plan.json"])
def test_a_saved_plan_is_read_back_as_it_was(tmp_path: Path, name: str) -> None:
    plan = SavedPlan(
        strategy=STRATEGY,
        job=("llm:gpt", "layers=4"),
        on="8xh100",
        why='fastest that fits; "bf16"',
        options={"storage": "samsung-960-pro", "examples": 1000},
        forecast={"step_seconds": 0.25},
    )
    plan.save(tmp_path / name)
    assert SavedPlan.load(tmp_path / name) == plan


def test_a_file_of_a_strategy_is_a_plan(tmp_path: Path) -> None:
    STRATEGY.save(tmp_path / "strategy.toml")
    assert SavedPlan.load(tmp_path / "strategy.toml") == SavedPlan(strategy=STRATEGY)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("strategy = 3", "strategy must be a table"),
        ("[strategy]\nbath = 3", "unknown key 'bath'"),
        ("[strategy]\n[options]\nbatch = 3", "unknown 'batch'"),
        ("[strategy]\n[options]\nstorage = [1]", "storage must be a word or a number"),
        ("machine = 'h100'\n[strategy]\nbatch = 3", "unknown key 'machine'"),
    ],
)
def test_a_damaged_plan_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(BadRecord, match=said):
        SavedPlan.load(path)
