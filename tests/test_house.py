"""The plan of the house, kept by tests: what may import what, what is public, and that the README tells the
truth."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import windtunnel as wt

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "windtunnel"
# From the ground up. A module may import what stands on its own floor or below.
FLOORS = (
    ("errors", "child_lifetime", "foreign", "garbage_collection"),
    ("units", "agreement", "bounds", "displays", "folders", "ownership"),
    ("records", "sealed"),
    ("job.imports", "job.scalers", "job.stored"),
    ("machine", "strategy", "results", "job.workload", "job.lesson", "accuracy.truth"),
    ("machine.here", "job", "fused", "saved_plan"),
    ("families",),
    ("trace", "networks", "learning"),
    ("forecast", "measurement", "machine.profiles"),
    ("prediction", "memory_advice", "perfetto", "accuracy.difference", "calibration", "isolation"),
    ("trace_cache",),
    ("feed", "exchange"),
    ("accuracy", "study"),
    ("advice", "planning", "influence", "choosing"),
    ("reports",),
    ("web",),
    ("cli",),
    ("__main__", "__init__"),
)
# A noun's own constructors may reach up when they are called, so that `Machine.here()` reads as it should.
REACHES = {
    ("machine.machine", "machine.here"),
    ("job.workload", "networks"),
    ("job.workload", "job.libraries"),
}


def floor_of(module: str) -> int:
    """The floor of the longest entry that names the module or a package around it."""
    name = module.partition(".")[2] or "__init__"
    entries = {entry: i for i, floor in enumerate(FLOORS) for entry in floor}
    while name not in entries:
        name = name.rpartition(".")[0]
    return entries[name]


def reaches(own: str, other: str) -> bool:
    return any(own == f"windtunnel.{a}" and f"{other}.".startswith(f"windtunnel.{b}.") for a, b in REACHES)


def is_module(name: str) -> bool:
    path = SOURCE / name.partition(".")[2].replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def imports_of(path: Path) -> set[tuple[str, bool]]:
    """Modules of ours that a file imports, and whether it does so when it is itself imported."""
    tree = ast.parse(path.read_text())
    late = {
        id(inner) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for inner in ast.walk(node)
    }
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    modules = set()
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "windtunnel":
            names = [
                name if is_module(name) else node.module
                for name in (f"{node.module}.{alias.name}" for alias in node.names)
            ]
            modules |= {(name, id(node) not in late) for name in names}
    return modules


def module_name(path: Path) -> str:
    return ".".join(["windtunnel", *path.relative_to(SOURCE).with_suffix("").parts])


def test_imports_only_climb() -> None:
    wrong = []
    for path in SOURCE.rglob("*.py"):
        own = module_name(path)
        for other, _ in imports_of(path):
            if not reaches(own, other) and floor_of(other) > floor_of(own):
                wrong.append(f"{own} imports {other}")
    assert not wrong


def test_forecasts_are_arithmetic_without_framework_clock_or_file() -> None:
    for path in (SOURCE / "forecast").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = {
            alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names
        }
        names |= {
            node.module.split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and node.module
        }
        assert not names & {"torch", "time", "os", "pathlib", "subprocess", "sqlite3"}, path
        assert not any(
            other.startswith(("windtunnel.measurement", "windtunnel.trace.")) for other, _ in imports_of(path)
        ), path


def test_measurements_know_nothing_of_forecasts() -> None:
    for path in (SOURCE / "measurement").rglob("*.py"):
        assert not any(
            other.startswith(("windtunnel.forecast", "windtunnel.prediction"))
            for other, _ in imports_of(path)
        ), path


@pytest.mark.parametrize(
    "words",
    [
        "import windtunnel",
        "import windtunnel.cli",
        "import windtunnel; windtunnel.Machine.named('8xh200'); windtunnel.Strategy()",
    ],
)
def test_no_framework_is_imported_uninvited(words: str) -> None:
    frameworks = ("torch", "numpy", "jax", "tensorflow", "sklearn")
    code = f"{words}; import sys; print([m for m in {frameworks} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_these() -> None:
    assert wt.__all__ == sorted(wt.__all__)
    inputs, results = {"Workload", "Machine", "Strategy"}, {"Forecast", "Measurement", "Validation", "Study"}
    functions = {"predict", "measure", "validate", "train", "crossover"}
    assert inputs | results | functions <= set(wt.__all__)
    assert all(getattr(wt, name) is not None for name in wt.__all__)
    with pytest.raises(AttributeError, match="simulate"):
        wt.simulate  # noqa: B018


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_use_public_names_only(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("windtunnel"):
            assert node.module == "windtunnel.fused", node.module
            assert {alias.name for alias in node.names} <= set(wt.fused.__all__)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "wt":
            assert node.attr in wt.__all__, node.attr


def test_the_readme_is_short_and_its_example_prints_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    example, output = re.search(r"```python\n(.*?)```\n+```text\n(.*?)```", text, re.DOTALL).groups()  # type: ignore[union-attr]
    assert len(example.strip().splitlines()) <= 12
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(example, "README.md", "exec"), {})
    assert said.getvalue().strip() == output.strip()


DOCS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_lines_of_the_docs_are_short(path: Path) -> None:
    lines = enumerate(path.read_text().splitlines(), start=1)
    assert not [number for number, line in lines if len(line) > 110 and not line.startswith("|")]


def test_only_units_spells_out_powers_of_ten_and_two_in_forecasts() -> None:
    for path in (SOURCE / "forecast").rglob("*.py"):
        assert not re.search(r"\b1e9\b|2 ?\*\* ?30|1024", path.read_text()), path


def test_no_two_public_classes_have_one_name() -> None:
    """Each network has its own Settings, reached through the network's name."""
    homes: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module_name(path))
    assert {name: where for name, where in homes.items() if len(where) > 1 and name != "Settings"} == {}


def test_no_pickle_anywhere() -> None:
    for path in SOURCE.rglob("*.py"):
        assert not re.search(r"\bimport pickle\b|torch\.(save|load)\(|allow_pickle=True", path.read_text()), (
            path
        )


def test_project_files_name_no_place_of_one_machine() -> None:
    for path in [
        *SOURCE.rglob("*.py"),
        *SOURCE.rglob("*.toml"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "Makefile",
    ]:
        assert not re.search(r"/(work|root|home)/", path.read_text()), path
