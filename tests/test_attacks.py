"""What an attack on the product found: damaged stores, and what a command says about them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import run
from test_intact import full, measured
from test_isolation import attack_jobs

from windtunnel import folders, records
from windtunnel.accuracy import published, truth
from windtunnel.cli import study_text, words
from windtunnel.errors import BadInput, BadRecord, StoreError
from windtunnel.exchange.variation import Variation
from windtunnel.measurement import repair
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.store import Store
from windtunnel.study import study as studies
from windtunnel.study.run import run_environment
from windtunnel.study.run.runner import CellCounts


def test_of_a_store_that_lost_its_end_what_is_whole_is_kept(tmp_path: Path) -> None:
    _, path = measured(tmp_path, cells=120)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 9 // 10])
    with pytest.raises(StoreError, match="malformed"):
        Store(path)
    assert not repair.check(path).is_whole
    assert repair.repair(path).kept > 100
    assert repair.check(path).is_whole


def test_a_store_of_which_nothing_can_be_read_is_left_as_it_is(tmp_path: Path) -> None:
    _, path = measured(tmp_path)
    data = path.read_bytes()[:4096]
    path.write_bytes(data)
    with pytest.raises(StoreError, match="no row can be read") as caught:
        repair.repair(path)
    assert "Restore a copy" in caught.value.hint
    assert path.read_bytes() == data
    assert [each.name for each in tmp_path.glob(f"{path.name}*")] == [path.name]


def test_a_file_on_a_full_disk_says_to_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windtunnel.records.try_writing", lambda path: full(0))
    with pytest.raises(BadInput, match="No space left") as caught:
        words.refuse_unwritable(tmp_path / "r.html", "--out")
    assert "Free some space" in caught.value.hint


@pytest.mark.parametrize("command", ["check", "repair"])
def test_a_check_and_a_repair_of_an_empty_store_say_that_it_is_empty(command: str, tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(b"")
    done = run("store", command, "--store", str(path))
    assert done.returncode == 2 and "is empty: it has 0 bytes" in done.stderr


def test_what_to_do_about_a_damaged_store_names_that_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path = measured(tmp_path / "a folder")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(StoreError) as caught:
        Store(path)
    assert f"store check --store '{path}'" in caught.value.hint
    assert f"store repair --store '{path}'" in caught.value.hint
    monkeypatch.setenv("WINDTUNNEL_STORE", str(path))
    with pytest.raises(StoreError) as caught:
        Store(path)
    assert "--store" not in caught.value.hint, "a command takes this store by itself"


def test_the_end_of_a_run_names_the_study_and_the_store_as_a_command_needs_them(tmp_path: Path) -> None:
    study, path = measured(tmp_path / "a folder")
    text = study_text.ending(study, CellCounts(states={"done": 2}), path)
    assert f"windtunnel study report '{study.folder}' --store '{path}' shows them" in text
    ours = studies.find("wuensche-2018")
    assert "windtunnel study report wuensche-2018 shows them" in study_text.ending(
        ours, CellCounts(states={"done": 2}), folders.store_file()
    )


def test_a_number_of_thousands_of_digits_in_a_file_is_named(tmp_path: Path) -> None:
    for name in ("m.toml", "m.json"):
        path = tmp_path / name
        path.write_text(
            ("a = " if path.suffix == ".toml" else '{"a": ') + "9" * 5000 + "}" * (".json" in name)
        )
        with pytest.raises(BadRecord, match=r"a number of more than 4,300 digits\.$"):
            records.load(path)


# ---------------------------------------------------------------- standard input, output and errors


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
@pytest.mark.parametrize("words", ["machine list", "machine list --json", "--help"])
def test_a_full_standard_output_is_a_clear_error(words: str) -> None:
    done = _in_shell(f"{words} >/dev/full")
    assert done.returncode == 2
    assert "Standard output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
def test_an_error_that_cannot_be_printed_has_its_exit_code() -> None:
    assert _in_shell("machine show nosuch 2>/dev/full").returncode == 2


@pytest.mark.parametrize("closed", ["<&-", ">&- 2>&-", "<&- 2>&-"])
def test_a_command_works_whose_standard_files_are_closed(closed: str, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    done = _in_shell(f"--no-cache predict ffn --on h200 --timeline {out} {closed}")
    assert done.returncode == 0, done.stderr
    assert out.stat().st_size > 1000


def test_a_command_works_in_a_folder_that_is_gone(tmp_path: Path) -> None:
    done = _in_shell(
        "predict ffn --on h200 --json", before=f"mkdir {tmp_path}/a; cd {tmp_path}/a; rmdir ../a; "
    )
    assert done.returncode in (0, 2) and "Traceback" not in done.stderr, done.stderr


def _in_shell(words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    command = f"{before}exec {shlex.quote(sys.executable)} -m windtunnel {words}"
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)


# ---------------------------------------------------------------- sizes beyond any cluster


@pytest.mark.parametrize("name", ["jitter", "spread", "slow_factor", "pause_factor", "restart_seconds"])
def test_a_variation_beyond_any_cluster_is_refused_with_the_bound(name: str) -> None:
    with pytest.raises(BadInput, match=rf"{name} must be at most [\d,]+, not 1e\+308"):
        Variation(**{name: 1e308})


def test_a_plan_for_a_million_devices_is_refused_with_the_bound() -> None:
    done = run("plan", "gpt2", "--on", "1000000xh100", "--batch", "512", seconds=120)
    assert done.returncode == 2 and "at most 65,536" in done.stderr


def test_a_plan_of_which_no_way_can_be_forecast_says_so() -> None:
    done = run("plan", "gpt2", "--on", "8xh100", "--batch", "99999999999", seconds=300)
    assert done.returncode == 2 and "no plan on 8xh100 can be forecast" in done.stderr, done.stderr


def test_a_job_may_close_its_output_each_time_it_is_built(tmp_path: Path) -> None:
    attack = next(a for a in attack_jobs.attacks() if (a.name, a.place) == ("closes descriptor 1", "build"))
    job = tmp_path / "job.py"
    job.write_text(attack.source())
    done = run("crossover", f"{job}:build", "--over", "size=8..9", "--no-measure", "--json", seconds=300)
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- files that others wrote


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("batch", "x", "ValueError"),
        ("batch", "0", "batch must be a whole number from 1"),
        ("batch", "9" * 5000, "ValueError"),
        ("tflops_per_gpu", "0", "ZeroDivisionError"),
        (None, "", "there is no column"),
    ],
)
def test_a_published_file_with_a_wrong_value_is_named_with_its_row(
    column: str | None, value: str, reason: str, tmp_path: Path
) -> None:
    cells = {"model": "1.7B", "hidden": "512", "layers": "4", "heads": "8", "model_parallel_size": "1"}
    cells |= {"gpus_A100_80GB": "32", "batch": "512", "tflops_per_gpu": "137"}
    cells |= {"TP_remembered": "1", "PP_remembered": "1"}
    cells |= {column: value} if column else {}
    kept = list(cells) if column else list(cells)[1:]
    lines = ["# a source", ",".join(kept), ",".join(cells[head] for head in kept)]
    (tmp_path / "megatron_narayanan2021_a100.csv").write_text("\n".join(lines))
    with pytest.raises(BadRecord, match=r"megatron_narayanan2021_a100\.csv, row 1") as caught:
        published.validate_published("megatron", tmp_path)
    assert reason in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 3000 + "]" * 3000, '{"a": ' + "9" * 5000 + "}"])
def test_a_hostile_line_of_a_table_of_steps_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"machine": "h200"}}\n{text}\n{{"job": "ffn"}}\n')
    with pytest.raises(BadRecord, match="line 2 is not valid JSON"):
        truth.read_table(path)


# ---------------------------------------------------------------- long studies


def test_this_machine_is_looked_at_once_for_a_framework_however_many_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[str]()
    monkeypatch.setattr(run_environment.here, "cpu_name", lambda: asked.append("cpu") or "a CPU")
    monkeypatch.setattr(run_environment, "_versions_of", lambda name: {name: "1"})
    here = run_environment.Here()
    facts = [here.facts(Task(framework="torch", variant="loop", job="rnn", batch=n)) for n in (1, 2, 3)]
    assert facts[0] == facts[1] == facts[2] and facts[0]["cpu"] == "a CPU"
    assert asked == ["cpu"]


def test_a_framework_of_ones_own_that_changed_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_environment, "_versions_of", lambda name: {})
    path, facts = tmp_path / "own.py", []
    task = Task(framework=str(path), variant="hand", job="ffn")
    for text in ("a = 1", "a = 1", "a = 2"):
        path.write_text(text)
        facts.append(run_environment.Here().facts(task))
    assert facts[0] == facts[1] != facts[2]
