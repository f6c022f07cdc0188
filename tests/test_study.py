"""Study files: what they hold, what is refused, and that the tables show what the authors printed."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windtunnel import networks
from windtunnel.errors import BadInput, BadRecord, UnknownName
from windtunnel.job.workload import Workload
from windtunnel.measurement import frameworks
from windtunnel.measurement.frameworks.base import settings_of
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.store import Store
from windtunnel.prediction import predict
from windtunnel.strategy import Strategy
from windtunnel.study import study as studies
from windtunnel.study.results import in_papers_unit, published
from windtunnel.study.run.cells import Choice, cells_of, points
from windtunnel.study.run.forecasts import Forecasts, can_be_forecast

HEAD = 'title = "T"\nauthors = "A"\nyear = 2020\nsource = "S"\n'
FIGURE = """
title = "F"
source = "S"
job = "rnn"
published_scale = 2000
[settings]
n_in = 2
[grid]
n_rec = [10, 20, 50]
n_steps = [10, 100]
[[case]]
name = "cpu"
labels = ["torch:loop", "numpy:hand"]
[[published]]
case = "K80"
label = "theano:scan"
device_name = "k80"
rows = { n_rec = [10, 20] }
columns = { n_steps = [10, 100] }
table = [[20.0, 40.0], [10.0, "na"]]
"""


def own_study(folder: Path, figure: str = FIGURE, head: str = HEAD) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "study.toml").write_text(head)
    (folder / "figure-1.toml").write_text(figure)
    return folder


def test_a_published_time_is_the_time_of_a_step_in_the_papers_unit(tmp_path: Path) -> None:
    """20 s for 1,000 examples twice over are 10 ms an example, and back."""
    study = studies.find(str(own_study(tmp_path / "mine")))
    rows = published(study)
    first = rows[0]
    assert first.step_seconds == pytest.approx(0.010) and first.settings == {
        "n_in": 2,
        "n_rec": 10,
        "n_steps": 10,
    }
    assert in_papers_unit(study.figure("figure-1"), first) == pytest.approx(20.0)
    missing = rows[3]
    assert (
        missing.state == "not available"
        and missing.step_seconds is None
        and missing.settings["n_steps"] == 100
    )


def test_every_published_number_of_the_recurrent_study_is_there() -> None:
    """By figure: how many cells the paper's table has, and the sum of all its numbers as the paper prints
    them.
    """
    study = studies.find("brandfonbrener-2017")
    printed = {
        figure.name: [v for p in figure.published for row in p.table for v in row] for figure in study.figures
    }
    assert {name: len(values) for name, values in printed.items() if name.startswith("figure")} == {
        "figure-02": 20,
        "figure-03": 20,
        "figure-04": 16,
        "figure-05": 36,
        "figure-06": 20,
        "figure-07": 20,
        "figure-08": 25,
        "figure-09": 20,
        "figure-10": 20,
        "figure-11": 0,
        "figure-12": 0,
    }
    sums = {2: 444.9, 3: 315.8, 4: 324.3, 5: 2006.5, 6: 327.1, 7: 375.7, 8: 1606.35, 9: 660.5, 10: 173.1}
    for number, total in sums.items():
        assert math.fsum(printed[f"figure-{number:02}"]) == pytest.approx(total), number
    by = {
        (r.figure, r.case, r.settings.get("n_rec"), r.settings.get("n_steps"), r.settings.get("n_in")): r
        for r in published(study)
    }
    assert by["figure-08", "M2090, Theano", 200, 200, 2].step_seconds == pytest.approx(148.75 / 2000)
    assert by["figure-05", "Macbook, Theano", 5000, 20, 10].step_seconds == pytest.approx(834.1 / 2000)


def test_table_one_has_its_twelve_cells_and_one_is_not_available() -> None:
    rows = [row for row in published(studies.find("wuensche-2018")) if row.figure == "table-1"]
    seconds = {(row.label.split(":")[0], row.threads): row.step_seconds for row in rows}
    assert len(seconds) == 12 and seconds["torch7", 8] is None
    assert (
        seconds["caffe", 8] == pytest.approx(15.444)
        and seconds["tensorflow", 1] == pytest.approx(7.062)
        and seconds["torch7", 4] == pytest.approx(0.423)
    )


def test_the_guides_data_flow_figures_add_up() -> None:
    quoted = {q.name: q.value for q in studies.find("wuensche-2018").figure("data-flow").quoted}
    assert quoted["refill four"] == pytest.approx(4 * quoted["refill one GTX 1080"], rel=1e-4)
    assert quoted["idle each time"] == pytest.approx(quoted["refill the three others"] - 0.5, rel=1e-3)
    assert quoted["busy share"] == pytest.approx(0.5 / quoted["refill the three others"], rel=1e-3)


@pytest.mark.parametrize("name", studies.names())
def test_cases_of_the_catalogue_name_variants_that_frameworks_have(name: str) -> None:
    """A framework may lack a case's device, which its rows say after a run; a variant that it lacks is a
    mistake.
    """
    for cell in cells_of(studies.find(name), cores=4):
        known = frameworks.named(cell.task.framework)
        assert cell.task.variant in known.variants[cell.task.job], (cell.figure, cell.task.label)
        settings_of(cell.task)


def test_a_study_may_sweep_the_settings_of_a_step_and_no_others() -> None:
    """A study can use every job that a framework builds. It cannot sweep what only a lesson has."""
    assert set(frameworks.jobs()) == {"rnn", "fcn5", "ffn", "lstm", "resnet18"}
    for job in frameworks.jobs():
        fields = {field.name for field in dataclasses.fields(networks.named(job).settings)}
        assert set(studies.step_settings(job)) < fields
    others = {"lesson_rate", "lesson_batch", "epochs", "init", "variant", "batch", "dropout"}
    assert not others & {name for job in frameworks.jobs() for name in studies.step_settings(job)}


def test_a_grid_is_every_combination_and_a_joined_axis_sets_both() -> None:
    assert list(points({"n_rec": (1, 2), "n_in,n_out": (5,)})) == [
        {"n_rec": 1, "n_in": 5, "n_out": 5},
        {"n_rec": 2, "n_in": 5, "n_out": 5},
    ]


def test_a_quick_run_has_the_corners_of_the_grid(tmp_path: Path) -> None:
    study = studies.find(str(own_study(tmp_path / "mine")))
    whole, corners = cells_of(study, 2), cells_of(study, 2, Choice(corners=True))
    assert len(whole) == 2 * 3 * 2 and len(corners) == 2 * 2 * 2
    assert {cell.task.settings["n_rec"] for cell in corners} == {10, 50}


def test_threads_are_counted_in_the_machines_cores_and_never_twice() -> None:
    threads = lambda cores: [
        c.task.threads
        for c in cells_of(
            studies.find("wuensche-2018"), cores, Choice(figures=("table-1",), frameworks=("numpy",))
        )
    ]
    assert threads(2) == [1, 2, 4, 8] and threads(16) == [1, 2, 4, 8, 16, 32]


GPU_TOO = FIGURE.replace(
    "[[published]]",
    '[[case]]\nname = "gpu"\nlabels = ["torch:loop", "torch:graph"]\ndevice = "gpu"\n[[published]]',
    1,
)


def test_cells_of_one_device_can_be_chosen(tmp_path: Path) -> None:
    study = studies.find(str(own_study(tmp_path / "mine", GPU_TOO)))
    chosen = {
        devices: cells_of(study, 2, Choice(devices=devices))
        for devices in ((), ("cpu",), ("gpu",), ("cpu", "gpu"))
    }
    assert {devices: len(cells) for devices, cells in chosen.items()} == {
        (): 24,
        ("cpu",): 12,
        ("gpu",): 12,
        ("cpu", "gpu"): 24,
    }
    assert {(cell.task.device, cell.case) for cell in chosen["gpu",]} == {("gpu", "gpu")} and {
        cell.case for cell in chosen["cpu",]
    } == {"cpu"}


def test_figures_and_frameworks_can_be_chosen_and_mistakes_are_named(tmp_path: Path) -> None:
    study = studies.find(str(own_study(tmp_path / "mine")))
    assert {c.task.label for c in cells_of(study, 2, Choice(frameworks=("numpy",)))} == {"numpy:hand"}
    with pytest.raises(UnknownName, match="no figure 'figure-2'"):
        cells_of(study, 2, Choice(figures=("figure-2",)))
    with pytest.raises(BadInput, match="for 'jaxx'"):
        cells_of(study, 2, Choice(frameworks=("jaxx",)))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("[grid]", "[gird]", "unknown key 'gird'"),
        ("n_rec = [10, 20, 50]", "n_rek = [10]", "no setting 'n_rek'"),
        ("n_rec = [10, 20, 50]", "n_rec = []", "needs values"),
        ("n_rec = [10, 20, 50]", "n_rec = [10, 10]", "each once"),
        ('"torch:loop"', '"torch"', "framework:variant"),
        ('job = "rnn"', 'job = "rrn"', "job cannot be 'rrn'"),
        ("[10.0, ", "[", "2 rows of 2"),
        ('"na"', '"n.a."', "is not a time"),
        ("20.0,", "0.0,", "is not a time"),
        ("published_scale = 2000", "published_scale = 0", "above 0"),
        ("n_steps = [10, 100]\n[[", 'optimizer = ["adagrad"]\n[[', "adagrad"),
        ("n_steps = [10, 100]\n[[", 'threads = ["all"]\n[[', "threads cannot be 'all'"),
        (
            'labels = ["torch:loop", "numpy:hand"]',
            'labels = ["torch:loop"]\n[[case]]\nname = "cpu"\nlabels = ["a:b"]',
            "two cases are named 'cpu'",
        ),
        ('title = "F"', "", "'title' is missing"),
        ("n_in = 2", "n_inn = 2", "no setting 'n_inn'"),
    ],
)
def test_a_mistake_in_a_study_file_is_named_with_the_file(
    tmp_path: Path, old: str, new: str, error: str
) -> None:
    assert old in FIGURE
    with pytest.raises(BadRecord, match=error) as caught:
        studies.find(str(own_study(tmp_path / "mine", FIGURE.replace(old, new, 1))))
    assert "figure-1.toml" in str(caught.value)


def test_a_plot_of_an_unknown_case_is_refused(tmp_path: Path) -> None:
    folder = own_study(tmp_path / "mine")
    (folder / "figure-2.toml").write_text(
        'title = "P"\nsource = "S"\n[[plot]]\nx = "n_rec"\n'
        '[[plot.lines]]\nfigure = "figure-1"\ncase = "K81"\n'
    )
    with pytest.raises(BadRecord, match="no case 'K81'"):
        studies.find(str(folder))


def test_an_unknown_study_and_a_folder_without_a_study_have_different_errors(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="brandfonbrener"):
        studies.find("brandfonbrener-2016")
    with pytest.raises(BadRecord, match=r"no study\.toml"):
        studies.find(str(tmp_path))


def ask(*words: str) -> str:
    from typer.testing import CliRunner

    from windtunnel.cli import app

    done = CliRunner().invoke(app, ["study", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_catalogue_can_be_listed_and_a_figure_shows_its_table_as_printed() -> None:
    assert "brandfonbrener-2017" in ask("list") and "wuensche-2018" in ask("list")
    assert "n_rec {10, 20, 50, 100, 200} x n_steps {10, 20, 50, 100}" in ask("show", "brandfonbrener-2017")
    table = ask("show", "brandfonbrener-2017", "--figure", "figure-05")
    assert "834.1" in table and "seconds for 1,000 examples x 2 epochs" in table
    assert json.loads(ask("show", "wuensche-2018", "--json"))["year"] == 2018


def test_a_dry_run_forecasts_time_and_memory_of_pytorch_and_names_cells_without_a_forecast(
    tmp_path: Path,
) -> None:
    study = own_study(
        tmp_path / "mine",
        FIGURE.replace("n_rec = [10, 20, 50]", "n_rec = [10, 1000]").replace(
            "n_steps = [10, 100]\n[[", "n_steps = [10]\n[["
        ),
    )
    cells = json.loads(
        ask("run", str(study), "--quick", "--dry-run", "--json", "--store", str(tmp_path / "s.sqlite"))
    )
    forecasts = {
        (cell["task"]["framework"], cell["task"]["settings"]["n_rec"]): cell["forecast"] for cell in cells
    }
    assert forecasts["numpy", 10] is None
    assert forecasts["torch", 1000]["step_seconds"] > forecasts["torch", 10]["step_seconds"] > 0
    assert forecasts["torch", 1000]["peak_bytes"] > 1000 * 1000 * 4
    text = ask("run", str(study), "--quick", "--dry-run", "--store", str(tmp_path / "s.sqlite"))
    assert "no forecast" in text and "4 cells to measure in about" in text


def dry(tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    """The tasks a run of a study with a GPU case would measure."""
    study = own_study(tmp_path / "mine", GPU_TOO)
    cells = json.loads(
        ask(
            "run",
            str(study),
            *words,
            "--dry-run",
            "--no-forecast",
            "--json",
            "--store",
            str(tmp_path / "s.sqlite"),
        )
    )
    return [cell["task"] for cell in cells]


@pytest.mark.parametrize(
    ("word", "devices"),
    [("cpu", {"cpu"}), ("cuda", {"gpu"}), ("gpu", {"gpu"}), ("cpu,cuda", {"cpu", "gpu"})],
)
def test_a_run_may_have_one_device_only(tmp_path: Path, word: str, devices: set[str]) -> None:
    tasks = dry(tmp_path, "--on", word)
    assert {task["device"] for task in tasks} == devices and len(tasks) == 12 * len(devices)


def test_a_quick_run_has_the_whole_grid_with_the_option_whole(tmp_path: Path) -> None:
    assert {task["settings"]["n_rec"] for task in dry(tmp_path, "--quick")} == {10, 50}
    assert {task["settings"]["n_rec"] for task in dry(tmp_path, "--quick", "--whole")} == {10, 20, 50}
    assert (
        len(dry(tmp_path, "--quick")) == 16
        and len(dry(tmp_path, "--quick", "--whole")) == len(dry(tmp_path)) == 24
    )


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--whole",), "--whole is only for --quick"),
        (("--whole", "--rigorous"), "--whole is only for --quick"),
        (("--on", "tpu"), "'tpu'"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    tmp_path: Path, words: tuple[str, ...], error: str
) -> None:
    words = (*words, "--dry-run", "--no-forecast", "--store", str(tmp_path / "s.sqlite"))
    command = [sys.executable, "-m", "windtunnel", "study", "run", str(own_study(tmp_path / "mine")), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and error in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "s.sqlite").exists(), "before anything is begun"


def a_task(framework: str, variant: str, n_steps: int = 100, **other: Any) -> Task:
    return Task(
        framework=framework, variant=variant, job="rnn", settings={"n_rec": 50, "n_steps": n_steps}, **other
    )


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_whole_epochs_in_one_call_are_forecast_without_launches(tmp_path: Path, device: str) -> None:
    known = Forecasts(Store(tmp_path / "study.sqlite"), has_gpu=False)
    loop, (short, fused, long) = (
        a_task("torch", "loop", device=device),
        (a_task("fused", "epoch", n_steps, device=device) for n_steps in (10, 100, 1000)),
    )
    assert known.make([loop, short, fused, long], seconds=3600) == 0
    seconds = [known.step_seconds(task) or 0.0 for task in (short, fused, long, loop)]
    assert 0 < seconds[0] < seconds[2] and 0 < seconds[1] < seconds[3] / 5
    by_calls = predict(
        Workload.named("rnn", variant="fused", **fused.settings),
        known._machine(fused),
        Strategy(threads=1 if device == "cpu" else None),
    )
    assert seconds[1] < by_calls.step_seconds / 2, "the time of PyTorch's calls is no part of it"
    forecast = known.get(fused) or {}
    assert (
        forecast["low_seconds"] <= forecast["step_seconds"] <= forecast["high_seconds"]
        and forecast["peak_bytes"] > 0
    )
    assert Forecasts(known.store, has_gpu=False).step_seconds(fused) == seconds[1], "kept"


def test_whole_epochs_without_a_probe_lie_between_the_arithmetic_and_the_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "windtunnel.forecast.profile.Profile.epoch_seconds", lambda self, n_rec, ends, timesteps: None
    )
    known, task = Forecasts(Store(tmp_path / "study.sqlite"), has_gpu=False), a_task("fused", "epoch")
    known.make([task], seconds=3600)
    forecast = known.get(task) or {}
    by_calls = predict(
        Workload.named("rnn", variant="fused", **task.settings), known._machine(task), Strategy(threads=1)
    )
    assert forecast["low_seconds"] <= forecast["step_seconds"] < by_calls.step_seconds
    assert forecast["high_seconds"] > forecast["step_seconds"] + 0.9 * (by_calls.host_seconds or 0), (
        "the timed ops may include the call"
    )


def test_every_job_of_pytorch_is_forecast_as_the_network_that_frameworks_build(tmp_path: Path) -> None:
    """A framework's LSTM has no dropout, so its forecast is that of the network without dropout."""
    known, settings = (
        Forecasts(Store(tmp_path / "study.sqlite"), has_gpu=False),
        {"width": 16, "length": 4},
    )
    task = Task(framework="torch", variant="module", job="lstm", settings=settings, device="gpu", batch=8)
    known.make([task], seconds=3600)
    strategy = Strategy(batch=8, optimizer="sgd")
    machine = known._machine(task)
    without, with_dropout = (
        predict(Workload.named("lstm", dropout=dropout, **settings), machine, strategy).step_seconds
        for dropout in (0.0, 0.3)
    )
    assert known.step_seconds(task) == without != with_dropout


def test_the_execution_of_a_forecast_is_that_of_pytorchs_variant() -> None:
    executions = {
        variant: getattr(frameworks.traced(a_task("torch", variant)), "execution", None)
        for variant in frameworks.named("torch").variants["rnn"]
    }
    assert executions == {
        "loop": "eager",
        "module": "eager",
        "compiled": "compiled",
        "graph": "graph",
        "module-graph": "graph",
    }


def test_a_forecast_has_the_recurrent_call_where_the_variant_has_it() -> None:
    calls = {
        variant: getattr(frameworks.traced(a_task("torch", variant)), "settings", {}).get("variant")
        for variant in frameworks.named("torch").variants["rnn"]
    }
    assert {variant for variant, call in calls.items() if call == "module"} == {"module", "module-graph"}


def test_a_task_that_the_fused_engine_cannot_run_has_no_forecast() -> None:
    assert can_be_forecast(a_task("fused", "epoch")) and can_be_forecast(
        a_task("fused", "epoch", device="gpu")
    )
    assert not can_be_forecast(a_task("fused", "epoch", threads=2)) and not can_be_forecast(
        a_task("fused", "epoch", device="gpu", data="streamed")
    )
    assert (
        not can_be_forecast(a_task("torch", "epoch"))
        and not can_be_forecast(a_task("fused", "loop"))
        and not can_be_forecast(a_task("jax", "scan"))
    )
