"""docs/factors.md says what docs/results/factors-guide.json holds."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

from windtunnel.influence.guide import EXAMPLES

ROOT = Path(__file__).parent.parent
DATA = ROOT / "docs" / "results" / "factors-guide.json"


def script() -> ModuleType:
    path = ROOT / "benchmarks" / "factors_guide.py"
    spec = importlib.util.spec_from_file_location("factors_guide", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_written_from_the_data() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "factors.md").read_text(encoding="utf-8") == script().text_of(data)


def test_the_data_has_all_examples_of_the_guide_and_counts_them() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    cases = [(case["job"], case["machine"]) for case in data["cases"]]
    assert cases == [(example.job, example.machine) for example in EXAMPLES]
    assert sum(data["counts"].values()) == len(cases)
    assert all(case["verdict"]["groups"] and case["factors"] for case in data["cases"])
