"""Trainings by several workers in a study, and the command line of `windtunnel train`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from typer.testing import CliRunner

from windtunnel.cli import app
from windtunnel.errors import BadInput, BadRecord
from windtunnel.exchange.trial import ClusterTrial, ClusterTrials
from windtunnel.reports import clusters
from windtunnel.study import study as studies
from windtunnel.study.run import train_cells

RUNNER = CliRunner()
TRIAL = ClusterTrial(
    network="ffn",
    settings={"hidden": 16},
    machine="guide-figure-6",
    exchange="sync",
    workers=4,
    target=0.6,
    jitter=0.1,
    rounds=12,
    steps=23,
)


def say(*words: str) -> tuple[int, str]:
    result = RUNNER.invoke(app, ["train", *words])
    hint = getattr(result.exception, "hint", "")
    return result.exit_code, f"{result.output}{result.exception or ''} {hint}"


class TestTrial:
    def test_a_kept_curve_on_another_clock_is_what_training_again_gives(self) -> None:
        slower = dataclasses.replace(TRIAL, slow_factor=3.0)
        trials = ClusterTrials()
        first, kept = trials.run(TRIAL), trials.run(slower)
        fresh = ClusterTrials().run(slower)
        assert kept == fresh
        assert kept.scores == first.scores and kept.seconds > first.seconds

    def test_it_ends_at_its_target_and_counts_mini_batches_of_all_workers(self) -> None:
        found = ClusterTrials().run(TRIAL)
        assert found.steps_to_target is not None and found.steps_to_target % 4 == 0
        assert found.scores[-1] >= 0.6 and all(score < 0.6 for score in found.scores[1:-1])

    def test_workers_beyond_the_machine_have_more_of_its_nodes(self) -> None:
        many = dataclasses.replace(TRIAL, workers=64, network_factor=0.1)
        machine = many.on_machine()
        assert machine.nodes == 16 and machine.network is not None
        assert machine.network.rate == pytest.approx(0.125e9)

    def test_orders_of_their_own_are_never_shared(self) -> None:
        for form in ("async", "mixed"):
            own = dataclasses.replace(TRIAL, exchange=form)
            assert own.curve != dataclasses.replace(own, slow_factor=2.0).curve
        assert TRIAL.curve == dataclasses.replace(TRIAL, exchange="server", slow_factor=2.0).curve

    @pytest.mark.parametrize("wrong", [{"workers": 0}, {"every": 0}, {"network_factor": 0.0}])
    def test_what_cannot_be_is_refused(self, wrong: dict[str, int]) -> None:
        with pytest.raises(BadInput):
            dataclasses.replace(TRIAL, **wrong)  # type: ignore[arg-type]


class TestStudy:
    def test_one_worker_is_trained_once_and_not_in_every_form(self) -> None:
        study = studies.find("exchange-2026")
        points = [point for point in train_cells.points_of(study) if point.figure == "figure-6"]
        alone = [point for point in points if point.cluster["workers"] == 1]
        assert {point.cluster["exchange"] for point in alone} == {"sync"} and len(alone) == 3
        assert len(points) == 3 * (1 + 3 * 6)

    def test_a_cluster_with_an_unknown_field_is_refused(self, tmp_path: Path) -> None:
        text = (studies.CATALOG / "exchange-2026" / "forty.toml").read_text().replace("jitter =", "jiter =")
        (tmp_path / "study.toml").write_text('title = "T"\nauthors = "A"\nyear = 2020\nsource = "S"\n')
        (tmp_path / "forty.toml").write_text(text)
        with pytest.raises(BadRecord, match="jiter"):
            studies.find(str(tmp_path))

    @pytest.mark.parametrize(
        ("taken", "middle"), [((0.1, 0.3, 0.2), 0.2), ((0.1, -1, 0.2), 0.2), ((0.1, -1, -1), None)]
    )
    def test_a_seed_that_never_reached_the_target_counts_as_the_slowest(
        self, taken: tuple[float, ...], middle: float | None
    ) -> None:
        from windtunnel.study import export

        root = Path(__file__).resolve().parents[1]
        row = next(iter(export.read(root / "docs/results/exchange-2026-simulated.json")))
        assert row.training is not None
        changed = dataclasses.replace(row.training, target_seconds=taken)
        assert clusters.seconds_of(dataclasses.replace(row, training=changed)) == middle

    def test_a_figure_prints_the_time_of_each_form(self) -> None:
        from windtunnel.study import export

        root = Path(__file__).resolve().parents[1]
        rows = list(export.read(root / "docs/results/exchange-2026-simulated.json"))
        figure = studies.find("exchange-2026").figure("figure-6")
        text = "\n".join(clusters.figure_lines(figure, rows))
        assert "workers     sync" in text and "64" in text and "not\n  reached" in text
        assert clusters.target_chart([row for row in rows if row.figure == "figure-6"], "T") is not None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ffn", "--workers", "1", "--exchange", "async"), "nobody to exchange with"),
        (("ffn", "--workers", "0"), "--workers 0: there is nobody to train"),
        (("ffn", "--workers", "0", "--on", "guide-figure-6"), "0 workers: guide-figure-6 has 16 devices"),
        (("ffn", "--on", "gtx1080", "--exchange", "async"), "--on 2xgtx1080"),
        (("ffn", "--on", "guide-figure-6", "--until", "acuracy=1"), "Did you mean 'accuracy'?"),
        (("ffn", "--workers", "4", "--exchange", "mixed", "--groups", "3"), "cannot be divided into 3"),
        (
            ("ffn", "--on", "guide-figure-6", "--exchange", "mixed", "--groups", "3"),
            "cannot be divided into 3",
        ),
        (("ffn", "--exchange", "local", "--every", "0"), "every must be at least 1"),
        (
            ("ffn", "--on", "guide-figure-6", "--exchange", "local", "--every", "0"),
            "every must be at least 1",
        ),
        (("gan", "--workers", "2"), "cannot be separated"),
        (("gan", "--on", "guide-figure-6"), "cannot be separated"),
        (("ffn", "--exchange", "asinc"), "asinc"),
        (("ffn", "--compare", ""), "No form of exchange is called ''"),
        (("ffn", "--jitter", "0.1"), "real workers differ by themselves"),
        (("ffn", "--failures", "3"), "real workers differ by themselves"),
        (("ffn", "--on", "guide-figure-6", "--samples", "none.txt"), "none.txt cannot be read"),
        (("ffn", "--on", "h100", "--clock", "real"), "real workers run on this machine or on a cluster"),
        (("ffn", "--on", "h100", "--engine", "ray"), "--engine is for real workers"),
        (("ffn", "--engine", "slurm"), "needs --folder"),
        (("ffn", "--backend", "mpi"), "gloo or nccl"),
        (("ffn", "--plot", "curve.txt"), "curve.txt"),
    ],
)
def test_bad_input_has_a_clear_message_and_starts_nothing(words: tuple[str, ...], said: str) -> None:
    code, text = say(*words)
    assert code != 0 and said in " ".join(text.split())


def test_forms_are_compared_and_drawn_and_a_target_out_of_reach_names_the_best(tmp_path: Path) -> None:
    plot = tmp_path / "curves.svg"
    code, text = say(
        "ffn",
        "hidden=8",
        "--on",
        "guide-figure-6",
        "--workers",
        "4",
        "--groups",
        "2",
        "--compare",
        "sync,async,mixed,local",
        "--epochs",
        "1",
        "--until",
        "accuracy=0.99",
        "--plot",
        str(plot),
    )
    assert code == 0 and "No form reached the target." in text
    assert text.count(": best 0.") == 4 and "against time from 0 to" in text
    assert plot.read_text().startswith("<svg")
