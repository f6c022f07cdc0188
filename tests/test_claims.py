"""A claim's verdict follows from the numbers, and the authors' own figures support most of their claims."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy
import pytest

from windtunnel import records
from windtunnel.errors import BadRecord
from windtunnel.study import study as studies
from windtunnel.study.claims import Claim, grade, judge, judge_one
from windtunnel.study.rows import ClaimVerdict, StudyRow
from windtunnel.study.run.cells import points
from windtunnel.study.selection import fits

RNG = numpy.random.default_rng(7)


def row(
    seconds: float | None,
    *,
    noise: float = 0.0,
    processes: int = 3,
    label: str = "torch:loop",
    origin: str = "measured",
    **more: Any,
) -> StudyRow:
    """A measured row whose processes differ by `noise` about `seconds`."""
    fields = {name: more.pop(name) for name in list(more) if name in StudyRow.__dataclass_fields__}
    groups: tuple[tuple[float, ...], ...] = ()
    median = seconds
    if noise and seconds is not None:
        groups = tuple(
            tuple(
                seconds * math.exp(noise * RNG.standard_normal()) * numpy.exp(0.01 * RNG.standard_normal(20))
            )
            for _ in range(processes)
        )
        median = float(numpy.median([numpy.median(group) for group in groups]))
    return StudyRow(
        **{
            "study": "s",
            "figure": "f",
            "case": "c",
            "label": label,
            "job": "rnn",
            "settings": more,
            "origin": origin,
            "step_seconds": median,
            "groups": groups,
            **fields,
        }
    )  # type: ignore[arg-type]


def claim(kind: str, **more: Any) -> Claim:
    return records.read(
        Claim, {"name": "n", "text": "t", "source": "s", "kind": kind, "counted": "x", **more}, "claim"
    )


def published(name: str) -> list[StudyRow]:
    """The rows that the authors printed."""
    study, rows = studies.find(name), list[StudyRow]()
    for figure in study.figures:
        for table in figure.published:
            grid = {**table.rows, **table.columns}
            for point, value in zip(
                points(grid), (value for line in table.table for value in line), strict=True
            ):
                of_row = {key: point.pop(key) for key in ("threads", "batch") if key in point}
                batch = of_row.get("batch") or table.batch or figure.batch
                seconds = None if value == "na" else value / (table.scale or figure.published_scale) * batch
                rows.append(
                    StudyRow(
                        study=name,
                        figure=figure.name,
                        case=table.case,
                        label=table.label,
                        job=figure.job,
                        settings={**figure.settings, **table.settings, **point},
                        device=table.device,
                        device_name=table.device_name,
                        threads=of_row.get("threads", table.threads),
                        batch=batch,
                        data=table.data,
                        optimizer=table.optimizer,
                        origin="published",
                        state="done" if seconds else "na",
                        step_seconds=seconds,
                    )
                )
    return rows


def on_paper(name: str) -> dict[str, ClaimVerdict]:
    return {
        verdict.claim: verdict for verdict in judge(studies.find(name).claims, published(name), "published")
    }


@pytest.mark.parametrize(
    ("name", "holding", "without"), [("brandfonbrener-2017", 27, 5), ("wuensche-2018", 2, 25)]
)
def test_on_the_authors_own_figures_each_claim_holds_or_the_claim_says_why_not(
    name: str, holding: int, without: int
) -> None:
    """`without`: claims for which the authors printed no figures that could be judged."""
    study, verdicts = studies.find(name), on_paper(name)
    counts = Counter[str]()
    for stated in study.claims:
        verdict = verdicts[stated.name]
        assert verdict.reason
        if not verdict.parts:
            counts["without figures"] += 1
            assert verdict.ruling == "can't tell" and not stated.own_figures
        elif stated.own_figures:
            assert verdict.ruling in ("holds in most", "holds in few", "holds nowhere"), stated.name
            assert stated.own_figures in verdict.published
        else:
            counts["holding"] += 1
            assert verdict.ruling == "holds everywhere", f"{stated.name}: {verdict.reason}"
    assert counts == {"holding": holding, "without figures": without}


@pytest.mark.parametrize("name", ["brandfonbrener-2017", "wuensche-2018"])
def test_every_claim_that_is_not_asked_here_is_still_judged_on_paper_or_has_no_figures(name: str) -> None:
    study = studies.find(name)
    measured = judge(study.claims, published(name) + as_measured(published(name)))
    for stated, verdict in zip(study.claims, measured, strict=True):
        assert (verdict.ruling == "not asked here") is bool(stated.not_asked), stated.name
        if stated.not_asked:
            assert verdict.reason == stated.not_asked
            assert all(part.ruling == "not asked here" for part in verdict.parts)


def as_measured(rows: list[StudyRow]) -> list[StudyRow]:
    return [dataclasses.replace(row, origin="measured") for row in rows]


def test_one_cpu_plays_one_part_and_a_newer_gpu_is_not_the_older_one() -> None:
    """A claim that names a laptop or an older GPU is not judged on rows of a server and an H200."""
    for stated in studies.find("brandfonbrener-2017").claims:
        words = stated.text.lower()
        if "laptop" in words or "older" in words:
            assert stated.not_asked, stated.name


@pytest.mark.parametrize(
    ("rulings", "expected"),
    [
        ("hhhh", "holds everywhere"),
        ("hhhf", "holds in most"),
        ("hhhu", "holds in most"),
        ("h" * 14 + "uuuuf", "holds in most"),  # 14 of 19, and one fails
        ("hhff", "holds in few"),
        ("hfff", "holds in few"),
        ("ffff", "holds nowhere"),
        ("fffu", "holds nowhere"),
        ("hu", "can't tell"),
        ("hfuuu", "can't tell"),
        ("uuuu", "can't tell"),
    ],
)
def test_a_claim_is_graded_by_the_share_of_its_parts_in_which_it_holds(rulings: str, expected: str) -> None:
    words = {"h": "holds", "f": "does not hold", "u": "can't tell"}
    assert grade([words[letter] for letter in rulings]) == expected


def test_a_cell_that_met_no_quiet_moment_judges_nothing() -> None:
    rows = [row(s, activation=a, n_rec=10) for a, s in (("sigmoid", 0.9), ("relu", 1.0))]
    loud = [row(s, activation=a, n_rec=20) for a, s in (("sigmoid", 9.0), ("relu", 1.0))]
    loud = [dataclasses.replace(each, environment={"disturbed": True}) for each in loud]
    stated = claim("ratio", **SIDES, most=0.99)
    assert judge_one(stated, [*rows, *loud]) == judge_one(stated, rows)
    assert judge_one(stated, loud).ruling == "can't tell"


def test_effects_on_the_papers_figures_are_those_worked_by_hand() -> None:
    verdicts = on_paper("brandfonbrener-2017")
    assert verdicts["eight times at 5,000"].effect == pytest.approx(834.1 / 109.3)
    assert verdicts["first cell not slow on the laptop"].effect == pytest.approx(6.8 / 7.6)
    assert verdicts["laptop up to 3 times as fast on small networks"].effect == pytest.approx(32.6 / 8.6)
    assert verdicts["laptop slow from 1,000 on"].effect == pytest.approx(134.8 / 18.6)
    # log(14.0 / 11.3) = 0.2143 and log(18.4 / 18.6) = -0.0108: the crossing lies at 0.952 between
    # log 500 and log 1000.
    assert verdicts["GPU overtakes the laptop between 500 and 1,000"].effect == pytest.approx(
        500 * 2**0.952, rel=1e-3
    )
    threads = on_paper("wuensche-2018")["threads beyond the physical cores hurt"]
    assert {part.where: part.effect for part in threads.parts} == {
        "caffe:net CPU": pytest.approx(15.444 / 0.578),
        "tensorflow:graph CPU": pytest.approx(1.938 / 2.648),
    }
    assert "tensorflow:graph" in threads.reason


def test_keras_on_tensorflow_is_not_the_slowest_once_shared_code_is_counted() -> None:
    stated = next(
        c for c in studies.find("brandfonbrener-2017").claims if c.name == "Keras on Tensorflow slowest"
    )
    wider = records.read(
        Claim,
        {**records.plain(stated), "select": {"figure": ["figure-02", *stated.select["figure"]]}},
        "wider",
    )
    assert judge_one(stated, published("brandfonbrener-2017")).ruling == "holds everywhere"
    verdict = judge_one(wider, published("brandfonbrener-2017"))
    assert verdict.ruling == "holds nowhere" and verdict.effect == 0.0


SIDES = {"first": {"activation": "sigmoid"}, "second": {"activation": "relu"}}


def test_an_interval_inside_the_band_holds_one_outside_does_not_and_one_across_an_edge_stays_undecided() -> (
    None
):
    def pair(ratio: float, noise: float) -> list[StudyRow]:
        return [
            row(1e-3 * ratio, noise=noise, activation="sigmoid", n_rec=10),
            row(1e-3, noise=noise, activation="relu", n_rec=10),
        ]

    stated = claim("ratio", **SIDES, least=0.9, most=1.1)
    assert judge_one(stated, pair(1.0, 0.005)).ruling == "holds everywhere"
    assert judge_one(stated, pair(1.5, 0.005)).ruling == "holds nowhere"
    across = judge_one(stated, pair(1.1, 0.1))
    assert across.ruling == "can't tell" and "crosses a limit" in across.reason
    assert (
        across.low is not None
        and across.high is not None
        and across.effect is not None
        and across.low < across.effect < across.high
    )


def test_the_interval_of_a_ratio_covers_the_truth_in_95_of_100_repetitions() -> None:
    stated, covered = claim("ratio", **SIDES, least=0.5), 0
    for _ in range(200):
        verdict = judge_one(
            stated, [row(0.9e-3, noise=0.05, activation="sigmoid"), row(1e-3, noise=0.05, activation="relu")]
        )
        assert verdict.low is not None and verdict.high is not None
        covered += verdict.low <= 0.9 <= verdict.high
    assert covered >= 184  # 95 % less twice the spread of 200 such draws


def test_more_cells_and_more_processes_make_an_interval_narrower() -> None:
    def width(cells: int, processes: int) -> float:
        rows = [
            row(s, noise=0.05, processes=processes, activation=a, n_rec=n)
            for n in range(cells)
            for a, s in (("sigmoid", 0.9), ("relu", 1.0))
        ]
        verdict = judge_one(claim("ratio", **SIDES, least=0.5), rows)
        assert verdict.high is not None and verdict.low is not None
        return verdict.high - verdict.low

    assert width(40, 3) < width(2, 3) and width(4, 30) < width(4, 3)


@pytest.mark.parametrize(("power", "ruling"), [(1.0, "holds everywhere"), (2.0, "holds nowhere")])
def test_a_slope_is_the_power_with_which_time_grows(power: float, ruling: str) -> None:
    rows = [row(1e-4 * n**power, noise=0.01, n_steps=n, n_rec=r) for n in (10, 20, 50, 100) for r in (20, 50)]
    verdict = judge_one(claim("slope", over="n_steps", least=0.9, most=1.1), rows)
    assert verdict.ruling == ruling and verdict.effect == pytest.approx(power, abs=0.05)


def test_a_straight_line_with_an_offset_is_linear_and_a_parabola_is_not() -> None:
    straight = [row(5e-3 + 1e-4 * n, n_steps=n) for n in (10, 20, 50, 100)]
    bent = [row(1e-6 * n**2, n_steps=n) for n in (10, 20, 50, 100)]
    stated = claim("linear", over="n_steps", least=0.98)
    assert judge_one(stated, straight).effect == pytest.approx(1.0)
    assert judge_one(stated, straight).ruling == "holds everywhere"
    assert judge_one(stated, bent).ruling == "holds nowhere"


CROSSING: dict[str, Any] = {
    "over": "n_rec",
    "first": {"device": "cpu"},
    "second": {"device": "gpu"},
    "free": ["device_name", "threads"],
}


def crossing_rows(
    at: float, values: tuple[int, ...] = (10, 100, 1000, 5000), noise: float = 0.005
) -> list[StudyRow]:
    return [
        row(1e-3 * s, noise=noise, n_rec=n, device=d, threads=t)
        for n in values
        for d, s, t in (("cpu", n / at, 1), ("gpu", 1.0, None))
    ]


@pytest.mark.parametrize(
    ("at", "ruling"),
    [(700, "holds everywhere"), (50, "holds nowhere"), (1e6, "holds nowhere"), (1, "holds nowhere")],
)
def test_where_a_gpu_overtakes_is_found_between_the_points(at: float, ruling: str) -> None:
    verdict = judge_one(claim("crossover", **CROSSING, least=500, most=1000), crossing_rows(at))
    assert verdict.ruling == ruling
    assert verdict.effect is None if at in (1e6, 1) else verdict.effect == pytest.approx(at, rel=0.05)


def test_rows_that_end_before_the_band_leave_a_crossing_undecided() -> None:
    verdict = judge_one(
        claim("crossover", **CROSSING, least=500, most=1000), crossing_rows(700, (10, 100, 200))
    )
    assert verdict.ruling == "can't tell" and "first is faster up to 200" in verdict.reason


def test_the_fastest_of_several_thread_counts_counts_for_the_cpu() -> None:
    rows = [row(4.0, device="cpu", threads=1), row(2.0, device="cpu", threads=8), row(1.0, device="gpu")]
    assert judge_one(
        claim("ratio", least=1.0, **{k: v for k, v in CROSSING.items() if k != "over"}), rows
    ).effect == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("seconds", "helps", "hurts"),
    [
        ((4.0, 2.0, 3.0), "holds everywhere", "holds everywhere"),
        ((4.0, 4.1, 3.0), "holds nowhere", "holds nowhere"),
    ],
)
def test_threads_are_judged_up_to_and_beyond_the_physical_cores(
    seconds: tuple[float, ...], helps: str, hurts: str
) -> None:
    rows = [row(s, threads=t, environment={"cores": 2}) for t, s in zip((1, 2, 4), seconds, strict=True)]
    assert judge_one(claim("threads", least=1.05), rows).ruling == helps
    assert judge_one(claim("oversubscribed", least=1.02), rows).ruling == hurts


def test_of_several_thread_counts_beyond_the_cores_the_first_one_counts() -> None:
    """Twice as many threads as cores: what more of them cost is another question."""
    rows = [
        row(s, threads=t, environment={"cores": 2})
        for t, s in zip((1, 2, 4, 8), (2.0, 1.0, 1.2, 3.0), strict=True)
    ]
    assert judge_one(claim("oversubscribed", least=1.02), rows).effect == pytest.approx(1.2)


def test_threads_cannot_be_judged_without_a_number_of_cores() -> None:
    rows = [row(s, threads=t) for t, s in ((1, 2.0), (2, 1.0))]
    assert judge_one(claim("threads", least=1.05), rows).ruling == "can't tell"
    assert judge_one(claim("threads", least=1.05), rows, cores=2).effect == pytest.approx(2.0)


def test_a_cold_claim_compares_the_first_step_with_a_steady_one() -> None:
    rows = [
        row(1.0, first_seconds=30.0, n_rec=10),
        row(1.0, first_seconds=10.0, n_rec=20),
        row(1.0, n_rec=50),
    ]
    assert judge_one(claim("cold", least=2.0), rows).effect == pytest.approx(20.0)


def test_an_exception_is_named_with_its_reason_and_the_successor_comes_first() -> None:
    rows = [
        row(s, label=label, activation=a)
        for label, sig in (("torch:loop", 0.9), ("jax:scan", 1.2), ("pytensor:scan", 0.8))
        for a, s in (("sigmoid", sig), ("relu", 1.0))
    ]
    stated = claim(
        "ratio", **SIDES, most=0.99, successors=["pytensor:*"], why={"jax:* CPU": "it compiles both"}
    )
    verdict = judge_one(stated, rows)
    assert verdict.ruling == "holds in most"
    assert verdict.reason == (
        "successor of the authors' framework: holds in pytensor:scan CPU (0.800); holds in 2 of 3 (at most"
        " 0.99); does not hold in jax:scan CPU (1.20: it compiles both)"
    )
    assert [(part.where, part.ruling) for part in verdict.parts] == [
        ("pytensor:scan CPU", "holds"),
        ("jax:scan CPU", "does not hold"),
        ("torch:loop CPU", "holds"),
    ]


def test_the_reason_names_a_missing_gpu_missing_rows_failed_rows_and_a_single_device() -> None:
    sides = {k: v for k, v in CROSSING.items() if k != "over"}
    rows = [row(1.0, device="cpu"), row(None, device="gpu", state="no GPU")]
    missing = judge_one(claim("ratio", **sides, least=1.0), rows)
    assert missing.ruling == "can't tell" and "no GPU rows" in missing.reason and "1 no GPU" in missing.reason
    assert judge_one(claim("ratio", **sides, least=1.0), []).reason.startswith("no rows for it")
    failed = judge_one(
        claim("ratio", **SIDES, least=1.0),
        [row(1.0, activation="relu"), row(None, activation="sigmoid", state="timeout")],
    )
    assert "1 timeout" in failed.reason and "sigmoid" in failed.reason
    figures = {
        "first": {"figure": "a"},
        "second": {"figure": "b"},
        "free": ["device_name"],
        "apart": "device_name",
    }
    same = judge_one(
        claim("ratio", **figures, least=1.0),
        [row(1.0, figure="a", device_name="u"), row(1.0, figure="b", device_name="u")],
    )
    assert same.ruling == "can't tell" and "same device name" in same.reason


def test_published_rows_are_judged_apart_from_measured_ones() -> None:
    rows = [
        row(s, activation=a, origin=o)
        for o, sig in (("measured", 2.0), ("published", 0.5))
        for a, s in (("sigmoid", sig), ("relu", 1.0))
    ]
    (verdict,) = judge([claim("ratio", **SIDES, least=0.4, most=0.6, printed="half")], rows)
    assert verdict.ruling == "holds nowhere" and verdict.effect == pytest.approx(2.0)
    assert verdict.published == "stated: half; by their own figures: holds everywhere, 0.500"


def test_the_same_rows_give_the_same_verdict_in_any_order() -> None:
    rows = [
        row(s, noise=0.1, activation=a, n_rec=n)
        for n in range(5)
        for a, s in (("sigmoid", 0.9), ("relu", 1.0))
    ]
    stated = claim("ratio", **SIDES, most=0.99)
    assert judge_one(stated, rows) == judge_one(stated, rows[::-1])


def test_a_pair_of_labels_is_compared_cell_by_cell_and_doubling_saves_a_share() -> None:
    rows = [
        row(s, label=label, n_steps=n)
        for n in (10, 20)
        for label, s in (("keras-jax:model", 3.0), ("jax:scan", 1.0), ("torch:loop", 5.0))
    ]
    verdict = judge_one(claim("ratio", pairs=[["keras-jax:model", "jax:scan"]], least=1.05), rows)
    assert verdict.effect == pytest.approx(3.0) and verdict.rows == 4
    shrinking = [row(s, devices=n) for n, s in ((1, 1.0), (2, 0.65), (4, 0.65 * 0.65))]
    assert judge_one(
        claim("doubling", over="devices", least=0.25, most=0.45), shrinking
    ).effect == pytest.approx(0.35)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"n_rec": 50}, True),
        ({"n_rec": [10, 50]}, True),
        ({"n_rec": "10..40"}, False),
        ({"n_rec": "50.."}, True),
        ({"label": "keras-*"}, True),
        ({"n_in": 2}, False),
    ],
)
def test_filters_take_a_value_a_list_a_range_or_a_pattern(wanted: dict[str, Any], expected: bool) -> None:
    assert fits(row(1.0, label="keras-jax:model", n_rec=50), wanted) is expected


def test_a_claim_that_cannot_fail_or_lacks_a_side_is_refused() -> None:
    for kind, more in (
        ("ratio", SIDES),
        ("ratio", {"least": 1.0}),
        ("slope", {"least": 1.0}),
        ("ratio", {**SIDES, "least": 2.0, "most": 1.0}),
    ):
        with pytest.raises(BadRecord):
            claim(kind, **more)


@pytest.mark.parametrize("name", ["brandfonbrener-2017", "wuensche-2018"])
def test_a_claim_compares_only_labels_that_the_study_measures_or_prints(name: str) -> None:
    study = studies.find(name)
    known = {label for figure in study.figures for case in figure.cases for label in case.labels}
    known |= {published.label for figure in study.figures for published in figure.published}
    stated = {label for claim in study.claims for pair in claim.pairs for label in pair}
    assert stated <= known


def test_the_interval_of_a_ratio_stays_above_zero_with_few_noisy_processes() -> None:
    rows = [row(2.0, noise=1.0, processes=2, threads=1), row(1.0, noise=1.0, processes=2, threads=2)]
    verdict = judge_one(claim("ratio", first={"threads": 1}, second={"threads": 2}, least=1.5), rows)
    assert verdict.low is not None and verdict.high is not None and verdict.effect is not None
    assert 0 < verdict.low < verdict.effect < verdict.high and verdict.ruling == "can't tell"
