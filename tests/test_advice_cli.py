"""Advice at the command line: what is printed, what is written and read back, and mistakes."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from pathlib import Path

import pytest
from conftest import run

import windtunnel as wt
from windtunnel.advice import proof
from windtunnel.advice.gain import GainInterval
from windtunnel.advice.proof import MeasuredGain, Proof, prove, why_not_measured
from windtunnel.cli import advise, predict
from windtunnel.errors import BadInput
from windtunnel.measurement.compare import PairedComparison

JOB = ("rnn", "n_rec=20", "n_steps=5")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """A plan that advice wrote, and the advice."""
    path = tmp_path_factory.mktemp("plans") / "plan.toml"
    done = run("advise", *JOB, "--on", "h200", "--apply", str(path), "--json")
    assert done.returncode == 0, done.stderr
    return path, json.loads(done.stdout)


def test_predict_reads_back_what_advice_wrote(written: tuple[Path, dict[str, object]]) -> None:
    path, advice = written
    together = advice["together"]
    done = run("predict", "--strategy", str(path), "--json")
    assert done.returncode == 0, done.stderr
    forecast = json.loads(done.stdout)
    assert forecast["machine"] == "h200" and forecast["job"] == "rnn"
    assert forecast["step_seconds"] == pytest.approx(together["step_seconds"])  # type: ignore[index]


def test_options_beside_a_plan_replace_what_it_says(written: tuple[Path, dict[str, object]]) -> None:
    path, _ = written
    words = ("predict", *JOB, "--strategy", str(path), "--on", "t4", "--execution", "eager", "--json")
    forecast = json.loads(run(*words).stdout)
    assert forecast["machine"] == "t4" and forecast["strategy"]["execution"] == "eager"
    kept = json.loads(run("predict", *JOB, "--strategy", str(path), "--on", "t4", "--json").stdout)
    assert kept["strategy"]["execution"] == wt.Strategy.read(_table(path)).execution != "eager"


def _table(path: Path) -> dict[str, object]:
    from windtunnel import records

    return dict(records.load(path)["strategy"])


def test_a_bare_strategy_is_a_plan_too(tmp_path: Path) -> None:
    path = tmp_path / "strategy.toml"
    wt.Strategy(batch=7, execution="graph").save(path)
    forecast = json.loads(run("predict", *JOB, "--on", "h200", "--strategy", str(path), "--json").stdout)
    assert forecast["batch"] == 7 and forecast["strategy"]["execution"] == "graph"


def test_measure_reads_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    wt.Strategy(batch=3, threads=1).save(path)
    words = ("measure", *JOB, "--strategy", str(path), "--processes", "1", "--seconds", "0.1", "--json")
    done = run(*words, store=tmp_path / "s.sqlite")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured["batch"] == 3 and measured["strategy"]["threads"] == 1


def test_one_piece_of_advice_can_be_written_alone(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    done = run("advise", *JOB, "--on", "h200", "--apply", str(path), "--only", "graph")
    assert done.returncode == 0, done.stderr
    assert f"wrote {path}" in done.stdout
    plan = json.loads(path.read_text())
    assert (
        plan["strategy"]["execution"] == "graph"
        and plan["on"] == "h200"
        and "variant" not in str(plan["job"])
    )


FED = ("--data", "storage", "--storage", "samsung-960-pro", "--example-bytes", "110KB", "--decode", "5ms")


def test_a_plan_keeps_the_options_that_its_forecast_needs(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    words = ("advise", *JOB, "--on", "h200", *FED, "--examples", "1000", "--loaders", "1")
    done = run(*words, "--apply", str(path), "--only", "loaders", "--json")
    assert done.returncode == 0, done.stderr
    every = [*json.loads(done.stdout)["suggestions"], *json.loads(done.stdout)["others"]]
    wanted = next(each for each in every if each["rule"] == "loaders")
    again = run("predict", "--strategy", str(path), "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["step_seconds"] == pytest.approx(wanted["step_seconds"])
    typed = run("predict", "--strategy", str(path), "--decode", "2s", "--json")
    assert json.loads(typed.stdout)["step_seconds"] > 2 * wanted["step_seconds"], "a typed option wins"


def test_a_machine_without_a_name_is_no_plan(tmp_path: Path) -> None:
    words = ("advise", *JOB, "--on", "h200", "--apply", str(tmp_path / "plan.toml"), "--only", "device")
    done = run(*words)
    assert done.returncode == 2 and "a machine that --on cannot name" in done.stderr.replace("\n    ", " ")


def test_advice_fits_a_terminal_of_80_columns() -> None:
    done = run("advise", *JOB, "--on", "ice-lake-2-cores", "--all", COLUMNS="80")
    assert done.returncode == 0 and done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    for words in ("advice: rnn", "bound by", "On this machine", "together", "why", "costs", "source", "flag"):
        assert words in done.stdout


def test_advise_takes_all_options_of_predict() -> None:
    own, other = (inspect.signature(f).parameters for f in (advise.advise, predict.predict))
    assert set(other) - set(own) == {"timeline", "batches"}
    assert {field.name for field in fields(wt.Strategy)} <= set(own)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("advise",), ("Nothing says what you want", "--task", "--data")),
        (("advise", *JOB, "--on", "h2000"), ("'h2000'", "'h200'")),
        (("advise", *JOB, "--on", "h200", "--measure"), ("--measure", "not on h200")),
        (("advise", *JOB, "--on", "h200", "--top", "-1"), ("--top",)),
        (("advise", *JOB, "--on", "h200", "--apply", "nowhere/plan.toml"), ("nowhere", "cannot be written")),
        (("advise", *JOB, "--on", "h200", "--apply", "plan.txt"), ("plan.txt", "TOML or JSON")),
        (("advise", *JOB, "--on", "h200", "--only", "graph"), ("--apply is missing",)),
        (("predict", "--strategy", "nowhere.toml"), ("nowhere.toml",)),
        (("predict", "--on", "h200"), ("No job is named",)),
    ],
)
def test_a_mistake_gets_a_clear_message(words: tuple[str, ...], expected: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in expected), done.stderr


def test_an_unknown_name_of_advice_is_refused(tmp_path: Path) -> None:
    done = run("advise", *JOB, "--on", "h200", "--apply", str(tmp_path / "p.toml"), "--only", "grahp")
    assert done.returncode == 2 and "'grahp'" in done.stderr and not (tmp_path / "p.toml").exists()


# Proof

GAIN = GainInterval(gain=2.0, low=1.5, high=2.6)


@pytest.mark.parametrize(
    ("measured", "difference", "verdict"),
    [
        (MeasuredGain(gain=1.9, low=1.8, high=2.0), "different", "as forecast"),
        (MeasuredGain(gain=1.2, low=1.1, high=1.3), "different", "less than forecast"),
        (MeasuredGain(gain=4.0, low=3.5, high=4.5), "different", "more than forecast"),
        (MeasuredGain(gain=0.8, low=0.7, high=0.9), "different", "the wrong way"),
        (MeasuredGain(gain=1.0, low=0.99, high=1.01), "same", "no gain"),
        (MeasuredGain(gain=1.9, low=None, high=None), "can't tell", "can't tell"),
    ],
)
def test_a_proof_says_what_was_measured_of_the_forecast(
    measured: MeasuredGain, difference: str, verdict: str
) -> None:
    assert Proof(name="x", forecast=GAIN, measured=measured, difference=difference).verdict == verdict


def test_what_this_machine_cannot_run_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    job, machine = wt.Workload.named("rnn", n_rec=20, n_steps=5), wt.Machine.here()
    advice = wt.advise(job, machine, wt.Strategy(threads=1))
    compared = []

    def compare(workload: object, a: object, b: object, *rest: object, **options: object) -> PairedComparison:
        compared.append(b)
        raise BadInput("not now")

    monkeypatch.setattr(proof, "compare", compare)
    proofs = prove(advice, top=2)
    assert compared, "something can be measured"
    for each in proofs.proofs:
        suggestion = next((s for s in advice.suggestions if s.name == each.name), None)
        if suggestion is not None and suggestion.proposal.scope in ("machine", "code"):
            assert each.reason and each.reason != "not now"
    with pytest.raises(BadInput, match="not this machine"):
        prove(wt.advise(job, wt.Machine.named("h200")))


def test_the_two_sides_of_a_proof_are_the_two_setups() -> None:
    job, machine = wt.Workload.named("rnn", n_rec=20, n_steps=5), wt.Machine.here()
    advice = wt.advise(job, machine, wt.Strategy(threads=1))
    base = advice.base.setup
    fused = advice.find("fused recurrent engine").setup
    assert fused is not None and fused.workload.origin is not None
    assert fused.workload.origin.settings["variant"] == "fused" and why_not_measured(base, fused) == ""


def test_advice_is_proven_here(tmp_path: Path) -> None:
    words = ("advise", *JOB, "--threads", "1", "--measure", "--top", "1", "--seconds", "1", "--json")
    done = run(*words, store=tmp_path / "s.sqlite")
    assert done.returncode == 0, done.stderr
    measured = [each for each in json.loads(done.stdout)["measured"] if each.get("measured")]
    assert measured and measured[0]["measured"]["gain"] > 0 and measured[0]["pairs"] >= 1
