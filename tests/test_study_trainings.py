"""Networks that a study trains: cells, runs, what is refused, and the claims on what they learned."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from windtunnel.cli import app
from windtunnel.errors import BadInput, BadRecord
from windtunnel.learning.trial import TrialRun, run_trial
from windtunnel.measurement.store import DONE, Store
from windtunnel.reports import learned as pictures
from windtunnel.reports.study import StudyReport
from windtunnel.study import claims, export
from windtunnel.study import study as studies
from windtunnel.study.claims import Claim
from windtunnel.study.results import results
from windtunnel.study.rows import StudyRow, TrainedSeeds
from windtunnel.study.run import train_cells, trainings
from windtunnel.study.run.cells import Choice
from windtunnel.study.run.run_environment import Here
from windtunnel.study.run.runner import Order
from windtunnel.study.study import Study

RUNNER = CliRunner()
HEAD = 'title = "T"\nauthors = "A"\nyear = 2020\nsource = "S"\n'
FIGURE = """
title = "Nodes"
source = "S"
[grid]
width = [2, 4, 16]
[[train]]
name = "ffn on digits"
network = "ffn"
data = "digits"
axes = { width = "hidden" }
rounds = 2
steps = 10
target = 0.5
baseline = 0.1
baseline_is = "the most common digit"
seeds = 2
"""


def own_study(folder: Path, figure: str = FIGURE) -> Study:
    folder.mkdir(exist_ok=True)
    (folder / "study.toml").write_text(HEAD)
    (folder / "nodes.toml").write_text(figure)
    return studies.find(str(folder))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path]:
    """A small study that was really trained."""
    folder = tmp_path_factory.mktemp("trained")
    study, path = own_study(folder / "mine"), folder / "store.sqlite"
    tally = trainings.run(study, Store(path), Here(), Order(seed=0))
    assert tally.states == {DONE: 6}
    return study, path


# A trial


def test_the_same_seed_gives_the_same_training_bit_for_bit() -> None:
    trial = TrialRun(network="ffn", settings={"hidden": 8}, rounds=2, steps=10, target=0.3, seed=3)
    first, again = run_trial(trial), run_trial(trial)
    assert (first.scores, first.loss) == (again.scores, again.loss)
    other = run_trial(dataclasses.replace(trial, seed=4))
    assert other.loss != first.loss and other.scores[0] != first.scores[0]  # other order, other weights


def test_a_trial_spends_its_whole_budget_and_counts_examples_to_its_target() -> None:
    """1,442 digits in 46 batches: batches of 31 and 32, so 20 steps are 620 to 640 examples."""
    result = run_trial(TrialRun(network="ffn", rounds=4, steps=10, target=0.5))
    assert result.steps == 40 and len(result.scores) == 5
    assert result.steps_to_target in (10, 20, 30)
    assert 31 * result.steps_to_target <= (result.examples_to_target or 0) <= 32 * result.steps_to_target
    assert 0 < (result.seconds_to_target or 0) < result.seconds


def test_a_target_above_reach_is_not_reached_and_the_best_score_is_there() -> None:
    result = run_trial(TrialRun(network="ffn", settings={"hidden": 1}, rounds=2, steps=5, target=1.0))
    assert result.steps_to_target is None and result.seconds_to_target is None
    assert result.best == max(result.scores[1:])


def test_a_loss_that_is_not_finite_is_a_result() -> None:
    result = run_trial(TrialRun(network="rnn", settings={"init": "1e30"}, rounds=3, steps=3))
    assert result.diverged and result.steps < 9


@pytest.mark.parametrize(("rounds", "steps"), [(0, 5), (5, 0), (10_000, 10_000)])
def test_a_budget_must_be_possible(rounds: int, steps: int) -> None:
    with pytest.raises(BadInput, match="rounds"):
        TrialRun(network="ffn", rounds=rounds, steps=steps)


@pytest.mark.parametrize("network", ["ffn", "recursive", "rnn"])
def test_several_layers_have_more_weights_and_still_learn(network: str) -> None:
    from windtunnel.job.workload import Workload

    def count(layers: int) -> int:
        return sum(p.numel() for p in Workload.named(network, layers=layers).model().parameters())

    assert count(3) - count(2) == count(2) - count(1) > 0
    before = run_trial(TrialRun(network=network, settings={"layers": 2}, rounds=1, steps=3))
    assert math.isfinite(before.loss or math.nan)


def test_initial_weights_can_be_a_multiple_of_the_usual_ones() -> None:
    import torch

    from windtunnel.job.workload import Workload

    def weights(init: str) -> torch.Tensor:
        torch.manual_seed(0)
        return next(Workload.named("ffn", init=init).model().parameters()).detach()

    assert torch.equal(weights("10x"), 10 * weights("modern"))
    with pytest.raises(BadRecord, match="init cannot be"):
        Workload.named("ffn", init="-1x")


# Files of a study


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('network = "ffn"', 'network = "fnn"', "no network is called 'fnn'"),
        ("seeds = 2", "seeds = 0", "seeds must be from 1"),
        ("rounds = 2", "rounds = 0", "rounds and steps must be above 0"),
        ("target = 0.5", "target = 0.1", "must be a score other than the baseline"),
        ("steps = 10", "steps = 10\ngrid = { depth = [1] }", "'depth' is not an axis"),
        ('axes = { width = "hidden" }', "axes = { width = { 2 = { hidden = 2 } } }", "no settings for 4"),
        ('axes = { width = "hidden" }', "axes = { width = 3 }", "must name a setting"),
        ("seeds = 2", "seedz = 2", "unknown key 'seedz'"),
    ],
)
def test_a_wrong_figure_is_refused_by_what_is_wrong(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in FIGURE
    with pytest.raises(BadRecord, match=message):
        own_study(tmp_path / "mine", FIGURE.replace(old, new, 1))


def test_an_unknown_setting_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    study = own_study(tmp_path / "mine", FIGURE.replace('"hidden"', '"hiden"'))
    with pytest.raises(BadRecord, match=r"train ffn on digits.*'hiden'") as error:
        train_cells.cells_of(study)
    assert "hidden" in error.value.hint


def test_networks_to_train_need_a_file_of_their_own(tmp_path: Path) -> None:
    case = '[[case]]\nname = "c"\nlabels = ["torch:module"]\n'
    figure = FIGURE.replace("width = [2, 4, 16]", "n_rec = [2]").replace('"S"\n', '"S"\njob = "rnn"\n')
    with pytest.raises(BadRecord, match="networks to train and other cells"):
        own_study(tmp_path / "mine", figure + case)


def test_every_cell_of_the_catalogue_has_settings_that_its_network_takes() -> None:
    """`cells_of` reads every setting strictly. Each cell has at least three seeds."""
    for name in studies.names():
        for cell in train_cells.cells_of(studies.find(name)):
            assert cell.point.case.seeds >= 3, cell.point.case.name


def test_the_first_seed_of_every_cell_comes_first_and_a_quick_run_has_the_corners() -> None:
    study = studies.find("choice-2026")
    whole = train_cells.cells_of(study)
    assert [cell.seed for cell in whole] == sorted(cell.seed for cell in whole)
    quick = train_cells.cells_of(study, "quick", Choice(corners=True))
    assert {cell.seed for cell in quick} == {0, 1, 2} and len(quick) < len(whole) / 3


# Runs


def test_a_row_has_what_each_seed_reached(trained: tuple[Study, Path]) -> None:
    study, path = trained
    rows = results(study, path)
    assert [row.settings["width"] for row in rows] == [2, 4, 16] and {row.state for row in rows} == {DONE}
    training = rows[-1].training
    assert training is not None and training.seeds == (0, 1) and training.budget_steps == 20
    alone = run_trial(train_cells.points_of(study)[-1].trial(1))
    assert training.scores[1] == pytest.approx(alone.score, rel=1e-4)
    assert training.losses[1] == pytest.approx(alone.loss, rel=1e-4)
    assert rows[0].environment["versions"]["torch"] and rows[0].step_seconds is None


def test_what_is_stored_is_not_trained_again(
    trained: tuple[Study, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, path = trained
    monkeypatch.setattr(trainings, "_trained", lambda trials: pytest.fail("trained again"))
    assert trainings.run(study, Store(path), Here()).states == {DONE: 6}


def test_a_killed_run_continues_and_gives_the_same_rows(trained: tuple[Study, Path], tmp_path: Path) -> None:
    study, path = trained
    store = tmp_path / "killed.sqlite"
    command = [sys.executable, "-m", "windtunnel", "study", "run", str(study.folder), "--store", str(store)]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and _done(store, study) < 1:
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert _done(store, study) >= 1
    subprocess.run(command, check=True, capture_output=True)
    assert _done(store, study) == 6
    assert [_learned(row) for row in results(study, store)] == [_learned(row) for row in results(study, path)]


def _done(path: Path, study: Study) -> int:
    if not path.exists():
        return 0
    store = Store(path)
    try:
        return sum(count for (_, _, state), count in store.counts(study.name).items() if state == DONE)
    finally:
        store.close()


def _learned(row: StudyRow) -> object:
    """All but the seconds, which no two runs share."""
    assert row.training is not None
    nothing = {"seconds": (), "target_seconds": (), "quiet": ()}
    return row.settings, dataclasses.replace(row.training, **nothing)


def test_a_child_that_dies_fails_its_cell_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = own_study(
        tmp_path / "mine", FIGURE.replace("[2, 4, 16]", "[2, 4]").replace("seeds = 2", "seeds = 1")
    )
    start = trainings.children.start
    begun: list[int] = []

    def kill_first(*words: object) -> object:
        conversation = start(*words)  # type: ignore[arg-type]
        begun.append(conversation.started.pid)
        if len(begun) == 1:
            os.kill(conversation.started.pid, signal.SIGKILL)
        return conversation

    monkeypatch.setattr(trainings.children, "start", kill_first)
    tally = trainings.run(study, Store(tmp_path / "s.sqlite"), Here())
    assert tally.states == {DONE: 1, "killed": 1} and len(begun) == 2
    assert "SIGKILL" in tally.failures[0][2] and "ffn on digits width=" in tally.failures[0][0]
    again = trainings.run(study, Store(tmp_path / "s.sqlite"), Here(), Order(rerun=True))
    assert again.states == {DONE: 2}


def test_rows_of_trainings_survive_a_file(trained: tuple[Study, Path], tmp_path: Path) -> None:
    study, path = trained
    rows = results(study, path)
    export.write(rows, tmp_path / "rows.json")
    assert export.read(tmp_path / "rows.json") == rows
    assert json.loads(str(export.flat(rows)[0]["training_seeds"])) == [0, 1]


# Reports


def test_the_report_shows_scores_steps_and_the_baseline(trained: tuple[Study, Path], tmp_path: Path) -> None:
    study, path = trained
    report = StudyReport(study=study, rows=tuple(results(study, path)))
    text = str(report)
    assert "Baseline: 0.100, the most common digit. Target: 0.500, within 20 steps." in " ".join(text.split())
    assert "width  accuracy" in text and max(map(len, text.splitlines())) <= 110
    page = report.save(tmp_path / "page.html").read_text()
    assert "ffn on digits" in page and "<svg" in page and "the most common digit" in page
    spec = report.chart("nodes", "width").spec
    values = spec["layer"][0]["data"]["values"]  # type: ignore[index]
    assert [value["x"] for value in values] == [2, 4, 16]


def test_a_network_far_below_its_baseline_stays_on_the_chart() -> None:
    figure = studies.find("choice-2026").figure("width")
    rows = [row("ffn on digits", {"width": width}, (0.0, 0.0)) for width in (1, 2)]
    rows = [dataclasses.replace(each, training=low_baseline(each)) for each in rows]
    drawn = pictures.chart(figure, pictures.lines_of(figure, rows))
    assert drawn is not None
    values = drawn.spec["layer"][0]["data"]["values"]  # type: ignore[index]
    assert all(value["y"] == -0.25 for value in values)


def low_baseline(each: StudyRow) -> TrainedSeeds:
    assert each.training is not None
    return dataclasses.replace(each.training, baseline=0.9)


# Claims on made-up rows


def row(
    case: str,
    settings: dict[str, object],
    scores: tuple[float, ...],
    steps: tuple[int, ...] = (),
    figure: str = "width",
) -> StudyRow:
    """A row with a baseline of 0: the skill is the score."""
    count = len(scores)
    training = TrainedSeeds(
        metric="accuracy",
        better="higher",
        baseline=0.0,
        baseline_is="nothing",
        target=0.9,
        budget_steps=100,
        seeds=tuple(range(count)),
        scores=scores,
        best_scores=scores,
        losses=(0.1,) * count,
        target_steps=steps or (10,) * count,
        target_examples=steps or (10,) * count,
        target_seconds=tuple(float(step) for step in steps) or (1.0,) * count,
        seconds=(5.0,) * count,
        diverged=(False,) * count,
        quiet=(True,) * count,
    )
    return StudyRow(
        study="s",
        figure=figure,
        case=case,
        label="torch:train",
        job="ffn",
        settings=settings,
        training=training,
    )


def wider(**fields: object) -> Claim:
    usual: dict[str, object] = {
        "name": "wider is better",
        "text": "t",
        "source": "s",
        "kind": "difference",
        "of": "skill",
        "counted": "skill",
        "first": {"width": 64},
        "second": {"width": 32},
        "per": ("case",),
        "least": 0.01,
    }
    return Claim(**{**usual, **fields})  # type: ignore[arg-type]


def test_a_rule_holds_fails_or_cannot_be_told_by_its_interval_over_seeds() -> None:
    """Means by hand: 0.90 - 0.80 = 0.10; 0.80 - 0.90 = -0.10; 0.85 - 0.84 with seeds far apart."""
    rows = [
        row("gains", {"width": 64}, (0.90, 0.91, 0.89)),
        row("gains", {"width": 32}, (0.80, 0.81, 0.79)),
        row("loses", {"width": 64}, (0.80, 0.81, 0.79)),
        row("loses", {"width": 32}, (0.90, 0.91, 0.89)),
        row("noisy", {"width": 64}, (0.60, 0.95, 1.00)),
        row("noisy", {"width": 32}, (0.99, 0.55, 0.98)),
    ]
    verdict = claims.judge_one(wider(), rows)
    parts = {part.where: part for part in verdict.parts}
    assert parts["gains"].ruling == "holds" and parts["gains"].effect == pytest.approx(0.10)
    assert parts["loses"].ruling == "does not hold" and parts["loses"].effect == pytest.approx(-0.10)
    assert parts["noisy"].ruling == "can't tell"
    assert verdict.ruling == "holds in few"


def test_one_seed_judges_nothing() -> None:
    rows = [row("one", {"width": 64}, (0.9,)), row("one", {"width": 32}, (0.1,))]
    verdict = claims.judge_one(wider(), rows)
    assert verdict.ruling == "can't tell" and "no row with 3 seeds" in verdict.reason


def test_a_target_that_one_side_missed_bounds_the_ratio_of_steps() -> None:
    """First took over 100 steps, second 20: at least 5 times as many, so 'at least 1.1' holds."""
    claim = wider(kind="ratio", of="steps", least=1.1)
    missed = row("c", {"width": 64}, (0.5, 0.5, 0.5), (-1, -1, -1))
    rows = [missed, row("c", {"width": 32}, (0.9, 0.9, 0.9), (20, 20, 20))]
    (part,) = claims.judge_one(claim, rows).parts
    assert part.ruling == "holds" and part.effect == pytest.approx(5.0) and part.high is None
    (part,) = claims.judge_one(wider(kind="ratio", of="steps", least=6.0), rows).parts
    assert part.ruling == "can't tell"  # it may be far more than 5
    both = [missed, row("c", {"width": 32}, (0.5, 0.5, 0.5), (-1, -1, -1))]
    assert not claims.judge_one(claim, both).parts


def test_the_best_width_is_chosen_by_other_seeds_than_those_that_judge_it() -> None:
    """By hand: for each seed, the other two choose width 2; 0.80 there and 0.70 at width 4: -0.10."""
    rows = [
        row("c", {"width": 1}, (0.50, 0.50, 0.50)),
        row("c", {"width": 2}, (0.80, 0.81, 0.79)),
        row("c", {"width": 4}, (0.70, 0.71, 0.69)),
    ]
    claim = wider(kind="beyond", over="width", first={}, second={}, least=None, most=-0.01)
    (part,) = claims.judge_one(claim, rows).parts
    assert part.ruling == "holds" and part.effect == pytest.approx(-0.10)
    assert "best at 2, compared at 4" in part.reason


def test_a_best_width_at_the_end_of_the_range_leaves_the_rule_open() -> None:
    """Nothing lies beyond it, so the rule was not tried."""
    rows = [row("c", {"width": width}, (score,) * 3) for width, score in ((1, 0.5), (2, 0.6), (4, 0.7))]
    claim = wider(kind="beyond", over="width", first={}, second={}, least=None, most=-0.01)
    (part,) = claims.judge_one(claim, rows).parts
    assert part.ruling == "can't tell" and "no optimum within the range" in part.reason


def test_noise_alone_shows_no_loss_beyond_the_best_width() -> None:
    """The means are 0.707, 0.72 and 0.667: chosen and judged by the same seeds, width 4 would lose 0.053.

    By hand: seed 0 is judged at width 2 (0.7 - 0.5), seed 1 at width 1 (0.6 - 0.5), seed 2 at width 1 (0).
    """
    rows = [
        row("c", {"width": 1}, (0.92, 0.5, 0.7)),
        row("c", {"width": 2}, (0.5, 0.9, 0.76)),
        row("c", {"width": 4}, (0.7, 0.6, 0.7)),
    ]
    claim = wider(kind="beyond", over="width", first={}, second={}, least=None, most=-0.01)
    (part,) = claims.judge_one(claim, rows).parts
    assert part.ruling != "holds" and part.effect == pytest.approx(0.1)


def test_only_seconds_need_a_quiet_machine() -> None:
    def disturb(one: StudyRow) -> StudyRow:
        assert one.training is not None
        quiet = dataclasses.replace(one.training, quiet=(False,) * 3)
        return dataclasses.replace(one, training=quiet, environment={"disturbed": True})

    rows = [
        disturb(row("c", {"width": 64}, (0.9, 0.9, 0.9), (40, 40, 40))),
        disturb(row("c", {"width": 32}, (0.1, 0.1, 0.1), (20, 20, 20))),
    ]
    assert claims.judge_one(wider(), rows).ruling == "holds everywhere"
    assert claims.judge_one(wider(kind="ratio", of="steps"), rows).ruling == "holds everywhere"
    assert claims.judge_one(wider(kind="ratio", of="seconds"), rows).ruling == "can't tell"


@pytest.mark.parametrize(
    "fields", [{"kind": "slope", "over": "width"}, {"kind": "beyond", "of": "step_seconds"}]
)
def test_a_claim_must_have_a_kind_that_fits_what_it_is_of(fields: dict[str, object]) -> None:
    with pytest.raises(BadRecord, match=r"cannot be of|needs over"):
        wider(**fields)


def test_every_claim_of_the_catalogue_on_trainings_finds_its_rows() -> None:
    """Rows at every point of the study: a claim that finds none has a wrong filter."""
    study = studies.find("choice-2026")
    rows = [
        dataclasses.replace(
            row(
                point.case.name,
                {**point.case.settings, **point.at},
                (0.5, 0.6, 0.7),
                (20, 30, 25),
                point.figure,
            ),
            job=point.case.network,
            data=point.case.data,
        )
        for point in train_cells.points_of(study)
    ]
    for claim in study.claims:
        verdict = claims.judge_one(claim, rows)
        assert bool(verdict.parts) != bool(claim.not_asked), claim.name


# At the command line


def test_the_commands_of_a_study_know_networks_to_train(trained: tuple[Study, Path], tmp_path: Path) -> None:
    study, path = trained
    name, store = str(study.folder), ["--store", str(path)]

    def told(*words: str) -> str:
        done = RUNNER.invoke(app, ["study", *words])
        assert done.exit_code == 0, done.output
        return done.output

    assert "train, ffn on digits: 2 seeds" in told("show", name)
    assert "width (sets hidden): 2, 4, 16" in told("show", name, "--figure", "nodes")
    assert "6 trainings on one thread" in told("run", name, "--dry-run", *store)
    assert "6 done" in told("run", name, *store)  # all are stored
    assert "nodes" in told("status", name, *store)
    assert "Written to" in told("report", name, *store, "--out", str(tmp_path / "page.html"))
    assert "3 rows written" in told("export", name, *store, "--out", str(tmp_path / "rows.csv"))


def test_a_mistake_on_the_command_line_is_named(trained: tuple[Study, Path]) -> None:
    study, path = trained
    name, store = str(study.folder), ["--store", str(path)]
    for words, message in (
        (["compare", name, str(path), str(path)], "has no times to compare"),
        (["run", name, *store, "--only", "node"], "Did you mean 'nodes'?"),
        (["run", name, *store, "--frameworks", "jax"], "is for 'jax'"),
        (["run", name, *store, "--on", "cuda"], "left to run"),
    ):
        done = RUNNER.invoke(app, ["study", *words])
        shown = done.output if done.exception is None else f"{done.output} {done.exception}"
        assert done.exit_code != 0 and message in shown, (words, shown)
