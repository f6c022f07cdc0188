"""From a task to a network by the guide's rules; tables as people have them; the ladder's physics."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import random
import re
import shlex
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from windtunnel import networks
from windtunnel.choosing import columns, ladder, own_data, rules, saved, tables
from windtunnel.choosing.answers import answers_of
from windtunnel.choosing.cells import read_number
from windtunnel.choosing.commands import command_lines
from windtunnel.choosing.ladder_result import LadderResult, RungResult, plot
from windtunnel.choosing.recommendation import recommend
from windtunnel.choosing.rungs import lesson_for, rungs_for
from windtunnel.choosing.task import KINDS, NetworkTask, check_form, find_kind, parse_duration, parse_share
from windtunnel.errors import BadInput, BadQuantity, Interrupted, RateMissing, UnknownName
from windtunnel.job.workload import Workload
from windtunnel.learning import checkpoint, training
from windtunnel.learning.layers import layers
from windtunnel.machine.machine import Machine

SECTIONS = re.compile(r"^(II|III\.[ABCD](\.[12])?)$")


def write(path: Path, rows: list[list[object]], separator: str = ",") -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows(rows)
    return path


def circles(path: Path, rows: int = 200) -> Path:
    """Two classes that no straight line divides: inside and outside of a circle."""
    draw = random.Random(1)
    body: list[list[object]] = [["a", "b", "place"]]
    for _ in range(rows):
        a, b = draw.uniform(-1, 1), draw.uniform(-1, 1)
        body.append([round(a, 4), round(b, 4), "inside" if a * a + b * b < 0.6 else "outside"])
    return write(path, body)


def run_ladder(path: Path, folder: Path, seconds: float = 3600, **more) -> LadderResult:
    data = own_data.read_own(path, seed=more.get("seed", 0))
    return ladder.run_ladder(data, ladder.LadderOptions(folder=folder, seconds=seconds, **more))


def scores(result: LadderResult) -> list[tuple[int, float, int]]:
    return [(rung.number, rung.score, rung.rounds) for rung in result.rungs]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("classify images", "classify images"),
        ("Interpret photos", "classify images"),
        ("recognise speech", "classify audio"),
        ("write a text", "generate text"),
        ("generate text", "generate text"),
        ("generate pictures", "generate freely"),
        ("generate pictures to a specification", "generate to specification"),
        ("compress images", "compress"),
        ("predict from a CSV", "classify tables"),
        ("sensor signals", "classify sequences"),
        ("unclear", "unclear"),
    ],
)
def test_a_description_in_own_words_finds_its_task(text, name):
    assert find_kind(text).name == name


@pytest.mark.parametrize("text", ["win at chess", "", "classify", "images and speech"])
def test_an_unknown_task_is_refused_with_all_that_are_known(text):
    with pytest.raises(UnknownName) as refused:
        find_kind(text)
    assert all(kind.name in str(refused.value) for kind in KINDS)


@pytest.mark.parametrize("text", ["3", "0", "-1%", "100%", "abc", "nan", ""])
def test_an_error_is_a_share_between_nothing_and_all(text):
    with pytest.raises(BadQuantity, match="between 0 and 1"):
        parse_share(text)


@pytest.mark.parametrize("text", ["", "soon", "0", "10 parsecs", "-5m", "9999999d"])
def test_a_time_needs_a_number_and_a_known_unit(text):
    with pytest.raises(BadQuantity, match="45s, 10m or 2h"):
        parse_duration(text)


def sized(name: str, **more: object) -> NetworkTask:
    return dataclasses.replace(
        NetworkTask(kind=find_kind(name), inputs=784, outputs=10, examples=1000, on="i7-3820"), **more
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_task_leads_to_a_network_that_can_be_built_by_rules_with_sections(kind):
    made = rules.design(sized(kind.name))
    assert made.network in networks.names() and set(made.landmarks) <= set(networks.names())
    assert made.rules and all(SECTIONS.match(rule.section) for rule in made.rules)
    assert rules.SMALL_WEIGHTS in made.rules
    Workload.named(made.network, **made.settings).model()


def widths(name: str) -> list[int]:
    made = rules.design(sized(name))
    return [layer.width for layer in layers(Workload.named(made.network, **made.settings))]


def test_nodes_follow_the_guide_at_least_the_inputs_fewer_narrowing_or_widening():
    inputs, hidden, _ = widths("classify tables")
    assert hidden >= inputs
    inputs, code, outputs = widths("compress")
    assert code < inputs == outputs
    made = rules.design(sized("classify images"))
    shapes = layers(Workload.named(made.network, **made.settings))
    pooled = [layer.width for layer in shapes if layer.kind in ("MaxPool2d", "Linear")]
    assert pooled == sorted(pooled, reverse=True) and len(pooled) == 4, "a convolutional network narrows"
    assert all(f"{width:,}" in made.nodes for width in pooled), "the answer says the widths"
    made = rules.design(sized("enlarge"))
    assert made.settings["code"] < made.settings["size"] == 28 and "14 x 14" in made.nodes, "widens"


@pytest.mark.parametrize("inputs", [1, 4, 64, 512, 513, 5000])
@pytest.mark.parametrize("outputs", [1, 10, 6000])
def test_a_feed_forward_layer_never_has_fewer_nodes_than_inputs_or_outputs(inputs, outputs):
    assert rules.feed_forward_nodes(inputs, outputs) >= max(inputs, outputs)


def test_inputs_that_are_no_picture_are_refused_with_the_nearest_side():
    with pytest.raises(BadInput, match=r"28 x 28 is 784"):
        rules.design(sized("classify images", inputs=787))


def test_a_task_without_its_numbers_names_the_option():
    with pytest.raises(BadInput, match="--outputs: classes"):
        rules.design(sized("classify images", outputs=None))


def test_the_whole_training_takes_as_much_longer_as_there_are_more_examples():
    short, long = (recommend(sized("classify tables", examples=n)) for n in (1000, 3000))
    assert long.training_seconds == pytest.approx(3 * short.training_seconds)
    assert short.training_seconds == pytest.approx(short.design.epochs * short.epoch_seconds)


def test_an_answer_fits_80_columns_and_names_commands_that_parse():
    answer = recommend(sized("classify images", error=0.03, seconds=1.0))
    text = answer.lines(80)
    assert max(map(len, text)) <= 80
    said = " ".join(" ".join(text).split())
    for part in ("(guide, section III.D)", "init=guide", "alexnet, googlenet", "In your 1.00 s", "weights"):
        assert part in said, part
    predict, train = answer.commands()
    assert predict[:3] == ["windtunnel", "predict", "dcn"] and "--on" in predict
    assert train == ["windtunnel", "network", "train", "dcn", "--until", "accuracy=0.97"]


def test_a_machine_without_the_rates_that_are_needed_is_named(tmp_path):
    path = tmp_path / "mine.toml"
    whole = Machine.named("i7-3820")
    bare = dataclasses.replace(whole.device, flop_rates={}, memory_rate=None)
    dataclasses.replace(whole, name="mine", host=bare, device=bare).save(path)
    with pytest.raises(RateMissing, match="mine"):
        recommend(sized("classify tables", on=str(path)))


def test_a_network_that_does_not_fit_is_still_described():
    answer = recommend(sized("classify tables", inputs=200_000, on="h200"))
    assert answer.forecast is None and "needs" in answer.too_large and "hidden layer" in str(answer)


def test_data_of_another_form_than_the_task_is_refused_with_the_right_task():
    with pytest.raises(BadInput, match="classify tables"):
        check_form(find_kind("classify images"), "table", "x.csv")
    check_form(find_kind("unclear"), "text", "x.txt")


def test_long_commands_go_on_after_a_backslash_and_options_stay_with_their_values():
    words = ["windtunnel", "network", "use", "a" * 40, "--data", "my file.csv"]
    lines = command_lines(words)
    assert len(lines) == 2 and lines[0].endswith("\\") and lines[1].strip() == "--data 'my file.csv'"
    assert shlex.split(" ".join(line.rstrip("\\") for line in lines)) == words


# Tables as people have them.


def test_semicolons_decimal_commas_quotes_and_a_byte_order_mark_are_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('\ufeffheight;"name; full";class\n1,5;"Ann\nB";x\n2,5;"C ""D""";y\n', encoding="utf-8")
    table = tables.read_csv(path)
    assert table.names == ("height", "name; full", "class") and table.named
    assert table.columns[0].numbers.tolist() == [1.5, 2.5]
    assert table.columns[1].texts == ("Ann\nB", 'C "D"')


def test_a_first_line_with_a_number_is_data_unless_the_user_says_otherwise(tmp_path):
    path = write(tmp_path / "a.csv", [["1", "x"], ["2", "y"]])
    assert tables.read_csv(path).names == ("column_1", "column_2")
    assert tables.read_csv(path, header=True).names == ("1", "x")
    assert len(tables.read_csv(path).places) == 2


def test_tabs_and_windows_text_are_read_and_said(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes("größe\tort\n1\tKöln\n".encode("cp1252"))
    table = tables.read_csv(path)
    assert table.names == ("größe", "ort") and "cp1252" in table.notes[0]


@pytest.mark.parametrize(
    ("cell", "comma", "number"),
    [
        ("3,5", True, 3.5),
        ("1.234,50 €", True, 1234.5),
        ("1.234.567", True, 1234567),
        ("1,234,567", True, 1234567),
        ("12 345,6", True, 12345.6),
        ("$1,200", False, 1200),
        ("12.5%", False, 12.5),
        ("-1,234.5", False, -1234.5),
        ("3,5", False, None),  # a decimal comma, or the thousands of a part of a number: nobody knows
        ("1e3", False, 1000),
        ("12:30", False, None),
        ("inf", False, None),
    ],
)
def test_numbers_are_read_as_people_write_them(cell, comma, number):
    assert read_number(cell, comma) == number


def test_a_number_that_is_not_written_plainly_is_said(tmp_path):
    rows = [["pay", "kind"], *([f"${n},500", "a" if n % 2 else "b"] for n in range(100, 140))]
    data = own_data.read_own(write(tmp_path / "pay.csv", rows))
    assert "Column 'pay': $100,500 is read as 100500." in data.notes


def test_a_first_line_of_words_that_stand_in_later_rows_is_a_row(tmp_path):
    rows = [["red", "yes"], ["blue", "no"], *([["red", "yes"], ["blue", "no"]] * 3)]
    table = tables.read_csv(write(tmp_path / "bare.csv", rows))
    assert not table.named and len(table.places) == 8 and table.places == tuple(range(8))
    assert any("--header" in note for note in table.notes)
    assert tables.read_csv(tmp_path / "bare.csv", header=True).named


def test_a_separator_at_the_end_of_each_line_makes_no_column(tmp_path):
    path = tmp_path / "trail.csv"
    path.write_text("a, b,\n" + '1, "x, y",\n' * 3)
    table = tables.read_csv(path)
    assert table.names == ("a", "b") and table.columns[1].texts == ("x, y",) * 3


def test_dates_are_left_out_with_what_to_do_and_a_column_that_tells_all_is_said(tmp_path):
    draw = random.Random(0)
    rows = [["day", "cost", "copy", "kind"]]
    for n in range(60):
        kind = draw.choice("xy")
        rows.append([f"2024-{1 + n // 28:02}-{1 + n % 28:02}", draw.random(), kind.upper(), kind])
    notes = " ".join(own_data.read_own(write(tmp_path / "days.csv", rows)).notes)
    assert "'day' is left out: it holds dates" in notes and "the month" in notes
    assert "'copy' alone tells 'kind'" in notes and "'cost' alone" not in notes


def test_of_a_huge_file_a_random_sample_is_kept_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "most_rows", lambda width: 50)
    path = write(tmp_path / "a.csv", [["n", "m"], *([i, i % 3] for i in range(1000))])
    table = tables.read_csv(path)
    assert len(table.places) == 50 and "1,000 rows, 50" in table.notes[0]
    assert list(table.places) == sorted(table.places) and max(table.places) > 500
    assert table.columns[0].numbers.tolist() == list(table.places), "rows stay whole"
    assert len(tables.read_csv(path, whole=True).places) == 1000, "every row gets an answer"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a\n1\n2\n", "one column"),
        (b"PK\x03\x04\0\0", "saved as CSV"),
        (b"a,b\n1,2\n3\n4\n5\n", "row 2 has 1"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_plain_words(tmp_path, content, said):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=said):
        tables.read_csv(path)


def table_of(**values: list[object]) -> tables.Table:
    made = [tables.parse_column(name, [str(cell) for cell in cells], False) for name, cells in values.items()]
    return tables.Table(columns=tuple(made), places=tuple(range(len(made[0]))), named=True)


def test_columns_that_say_nothing_are_left_out_and_named():
    n = 40
    table = table_of(
        id=list(range(7, 7 + n)),
        same=[1] * n,
        holes=["", *([""] * 24), *range(15)],
        names=[f"name {i}" for i in range(n)],
        size=[i % 7 for i in range(n)],
        kind=["x", "y"] * (n // 2),
    )
    target = columns.read_target(table, None, "a.csv")
    usable, notes = columns.choose_columns(table, target, "a.csv")
    assert [table.names[place] for place in usable] == ["size"]
    for name, reason in {
        "id": "numbers the rows",
        "same": "all its values are the same",
        "holes": "25 of 40 values are missing",
        "names": "40 different texts",
    }.items():
        assert any(repr(name) in note and reason in note for note in notes), name


def test_missing_values_get_the_median_and_words_one_input_each():
    table = table_of(size=[1, "NA", 3, 5, "?", 100], colour=["red", "blue", "", "red", "green", "blue"])
    inputs, notes = columns.fit_inputs(table, [0, 1], [0, 1, 2, 3], "a.csv")
    # Of the rows to learn from, 1, missing, 3, 5: the median is 3, so the mean is 3 and the variance 2.
    assert inputs[0].fill == 3 and inputs[0].mean == 3 and inputs[0].deviation == pytest.approx(2**0.5)
    assert inputs[1].categories == ("blue", "red"), "a word that no row to learn from has is unknown"
    made = columns.prepare(table.columns, inputs, range(6))
    assert made[1].tolist() == [0, 1, 0] and made[2].tolist() == [0, 0, 0] and made[4].tolist() == [0, 0, 0]
    assert "'size': 2 missing values are filled with the median, 3." in notes[0]
    assert "2 words (blue, red); 1 missing" in notes[1]


@pytest.mark.parametrize(
    ("values", "number"),
    [
        ([0, 1] * 20, False),
        (["yes", "no"] * 20, False),
        ([i / 10 for i in range(40)], True),
        (list(range(40)), True),
        ([0.5, 1.5] * 20, True),
    ],
)
def test_few_whole_numbers_or_words_are_classes_and_other_numbers_a_number(values, number):
    target = columns.read_target(table_of(a=list(range(40)), t=values), None, "a.csv")
    assert (target.numbers is not None) == number


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["yes"] * 40, "one class only"),
        ([f"w{i}" for i in range(40)], "40 values in 40 rows"),
        ([1, 0] * 10, "20 rows with a value"),
        (["", *["NA"] * 20, *[1, 0] * 10], "20 rows with a value"),
    ],
)
def test_a_target_that_cannot_be_learned_is_refused(values, said):
    with pytest.raises(BadInput, match=said):
        columns.read_target(table_of(a=list(range(len(values))), t=values), None, "a.csv")


def test_rare_classes_and_rows_without_a_target_are_left_out_and_said():
    table = table_of(a=list(range(42)), t=[*["x", "y"] * 20, "rare", ""])
    target = columns.read_target(table, "t", "a.csv")
    assert target.classes == ("x", "y") and len(target.rows) == 40
    assert "1 rows without" in target.notes[0] and "rare" in target.notes[1]


def test_an_unknown_target_column_is_refused_with_the_columns_there_are():
    with pytest.raises(UnknownName, match=r"Did you mean 'price'.*Columns: price, size"):
        columns.read_target(table_of(price=[1], size=[2]), "prise", "a.csv")


@pytest.mark.parametrize("labels", [None, ["a"] * 30 + ["b"] * 7])
def test_the_three_parts_share_no_row_and_leave_none_out(labels):
    parts = own_data.divide(labels, 37, seed=3)
    assert sorted(row for part in parts for row in part) == list(range(37))
    assert parts != own_data.divide(labels, 37, seed=4) and parts == own_data.divide(labels, 37, seed=3)
    if labels:
        assert all({labels[row] for row in part} == {"a", "b"} for part in parts)


def test_nothing_of_the_other_parts_is_used_to_prepare_the_rows(tmp_path):
    draw = random.Random(0)
    rows = [[draw.random(), draw.choice("xy")] for _ in range(60)]
    _, choose, exam = own_data.divide([label for _, label in rows], 60, seed=0)
    changed = [[1000.0 if i in (*choose, *exam) else value, label] for i, (value, label) in enumerate(rows)]
    first, second = (
        own_data.read_own(write(tmp_path / f"{n}.csv", [["v", "t"], *body]))
        for n, body in enumerate((rows, changed))
    )
    assert first.preparation == second.preparation
    assert torch.equal(first.learn["inputs"], second.learn["inputs"])


# The ladder.


def test_the_ladder_goes_deeper_while_it_pays_and_stops_at_the_target(tmp_path):
    result = run_ladder(circles(tmp_path / "c.csv"), tmp_path / "run", target=0.9)
    assert result.chosen == 2 and [rung.number for rung in result.rungs] == [1, 2]
    assert result.rungs[0].score < 0.8 < 0.9 <= result.rungs[1].score
    assert result.exam.score > result.exam.baseline + 0.15
    text = [line for line in result.lines(80) if str(tmp_path) not in line]  # commands to paste stay whole
    assert max(map(len, text)) <= 80 and any("<- chosen" in line for line in text)
    drawn = [line for line in result.lines(60) if "|" in line or "+--" in line]
    assert len(drawn) == 10 and max(map(len, drawn)) <= 60, "the chart has the width of the terminal"
    assert result.rule in " ".join(" ".join(line.split()) for line in text).replace("rule ", "")


def test_labels_of_noise_are_not_predicted_though_they_can_be_learned_by_heart(tmp_path):
    draw = random.Random(0)
    rows = [[*(draw.gauss(0, 1) for _ in range(20)), draw.choice("xy")] for _ in range(300)]
    path = write(tmp_path / "noise.csv", [[*(f"v{i}" for i in range(20)), "t"], *rows])
    result = run_ladder(path, tmp_path / "run")
    # 60 rows of chance: 0.5, and 0.69 is three standard deviations above.
    assert result.exam.score < 0.69
    data = own_data.read_own(path)
    kept = lesson_for(rungs_for(data)[result.chosen - 1], data, data.choose)
    again = kept.examine(saved.load(tmp_path / "run").model)["accuracy"]
    assert again == result.winner.score, "the weights of the best round are kept, not those of the last"
    rung = rungs_for(data)[2]
    learned = training.train_lesson(lesson_for(rung, data, data.learn), training.TrainingOptions(epochs=40))
    unseen = lesson_for(rung, data, data.exam).examine(learned.model)["accuracy"]
    assert learned.best > 0.95 and unseen < 0.69, "rows that are known by heart are not in the exam"


@pytest.mark.parametrize(
    ("found", "target", "chosen", "trained"),
    [
        ((0.8, 0.805, 0.806, 0.99), None, 1, 3),  # two rungs in a row removed less than 1 in 20 errors
        ((0.8, 0.79, 0.85, 0.85, 0.85), None, 3, 5),
        ((0.8, 0.81, 0.82), None, 3, 3),  # 0.2, 0.19, 0.18: each removes 1 in 20
        ((0.8, 0.805, 0.9), 0.803, 2, 2),  # the target counts more than the gain
        ((0.5, 1.0, 1.0), None, 2, 2),
    ],
)
def test_a_deeper_rung_is_chosen_only_where_it_is_worth_its_time(
    tmp_path, monkeypatch, found, target, chosen, trained
):
    def train(run, rung):
        score = found[rung.number - 1] if rung.number <= len(found) else 0.0
        facts = {"title": "", "nodes": "", "best_round": 1, "rounds": 1, "seconds": 0.0, "parameters": 1}
        return RungResult(number=rung.number, score=score, complete=True, **facts)

    monkeypatch.setattr(ladder._Run, "_train", train)
    monkeypatch.setattr(ladder._Run, "_save_chosen", lambda *_: None)
    monkeypatch.setattr(ladder._Run, "_finish", lambda run, ended: (run.chosen.number, run.done))
    number, done = run_ladder(circles(tmp_path / "c.csv", 40), tmp_path / "run", target=target)
    assert number == chosen and len([rung for rung in done if rung.score]) == trained


def test_a_seed_gives_the_same_ladder_and_another_seed_another(tmp_path):
    path = circles(tmp_path / "c.csv", rows=120)
    first, second, other = (
        run_ladder(path, tmp_path / str(n), seed=seed, target=0.9) for n, seed in enumerate((5, 5, 6))
    )
    assert scores(first) == scores(second) and first.exam == second.exam
    assert scores(first) != scores(other)


def test_more_time_never_gives_a_worse_choice(tmp_path, monkeypatch):
    looks = itertools.count()
    # Every look at the clock is a millisecond later: a busy machine ends as many rounds as a quiet one.
    monkeypatch.setattr(time, "perf_counter", lambda: 0.001 * next(looks))
    path = circles(tmp_path / "c.csv")
    found = [
        run_ladder(path, tmp_path / str(n), seconds) for n, seconds in enumerate((0.001, 0.15, 0.6, 3600))
    ]
    chosen = [result.winner.score for result in found]
    assert chosen == sorted(chosen) and chosen[0] < chosen[-1]
    assert len(found[0].rungs) == 1 and found[0].rungs[0].rounds == 1, "one round is always trained"
    assert "time is over" in found[0].ended


def test_a_killed_ladder_goes_on_where_it_was_and_trains_no_rung_twice(tmp_path, monkeypatch):
    path = circles(tmp_path / "c.csv", rows=120)
    whole = run_ladder(path, tmp_path / "whole")
    data = own_data.read_own(path)
    options = ladder.LadderOptions(folder=tmp_path / "cut", seconds=3600)

    def kill(rung, number, score, seconds):
        if (rung.number, number) == (2, 4):
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="Stopped after epoch 4"):
        ladder.run_ladder(data, options, kill)
    assert saved.load(tmp_path / "cut").description.rung.number == 1, "what was done can be used"
    trained = []
    inner = training.train_lesson
    monkeypatch.setattr(
        training,
        "train_lesson",
        lambda *a, **k: trained.append(k["identity"].settings["hidden"]) or inner(*a, **k),
    )
    resumed = ladder.run_ladder(data, options)
    assert scores(resumed) == scores(whole) and resumed.exam == whole.exam
    assert [] not in trained, "rung 1, which has no hidden layer, was not trained again"
    trained.clear()
    assert scores(ladder.run_ladder(data, options)) == scores(whole) and trained == []


def test_a_folder_of_other_data_is_refused_and_fresh_starts_again(tmp_path):
    run_ladder(circles(tmp_path / "a.csv", 60), tmp_path / "run", seconds=0.001)
    other = circles(tmp_path / "b.csv", 70)
    with pytest.raises(BadInput, match="other data"):
        run_ladder(other, tmp_path / "run")
    assert run_ladder(other, tmp_path / "run", seconds=0.001, fresh=True).data == "b.csv"


def test_a_target_that_no_rung_reached_says_the_best(tmp_path):
    result = run_ladder(circles(tmp_path / "c.csv", 60), tmp_path / "run", target=0.9999)
    text = " ".join(str(result).split())
    assert result.reached is False
    assert "not reached; the best rung had" in text or "reached on the rows to choose on" in text


def test_a_number_is_predicted_in_its_own_unit_and_scored_against_the_mean(tmp_path):
    draw = random.Random(0)
    rows = [[a := draw.uniform(0, 10), b := draw.uniform(0, 10), 100 + 30 * a - 20 * b] for _ in range(200)]
    path = write(tmp_path / "prices.csv", [["a", "b", "price"], *rows])
    result = run_ladder(path, tmp_path / "run", target=0.98)
    assert result.metric == "r2" and result.exam.score > 0.97 and result.exam.baseline == 0
    new = write(tmp_path / "new.csv", [["b", "extra", "a"], [0, "x", 10], [10, "x", 0]])
    found = answers_of(saved.load(tmp_path / "run"), new)
    assert [float(one.predicted) for one in found.answers] == pytest.approx([400, -100], abs=60)
    assert found.score is None and "extra" in found.notes[0]


def test_a_saved_network_answers_as_the_chosen_one_did(tmp_path):
    path = circles(tmp_path / "c.csv")
    result = run_ladder(path, tmp_path / "run", target=0.9)
    found = answers_of(saved.load(tmp_path / "run"), path)
    parts = own_data.read_own(path)
    labels = [row[2] for row in csv.reader(path.open())][1:]
    exam = own_data.divide(labels, len(labels), 0)[2]
    right = sum(found.answers[i].predicted == labels[i] for i in exam) / len(exam)
    assert right == pytest.approx(result.exam.score) and len(exam) == parts.examples[2]
    assert "learned from most of these" in str(found), "its accuracy on what it learned from is no exam"


@pytest.mark.parametrize(
    ("values", "shown"),
    [(("1.0", "2.0"), ("1", "2")), (("1000001", "2000002"), ("1000001", "2000002"))],
    ids=["decimals", "codes"],
)
def test_classes_that_are_numbers_are_judged_by_their_value(tmp_path, values, shown):
    rows = [["a", "kind"], *([n % 2 + n / 1000, values[n % 2]] for n in range(40))]
    path = write(tmp_path / "codes.csv", rows)
    result = run_ladder(path, tmp_path / "run", seconds=0.01)
    found = answers_of(saved.load(result.folder), path)
    assert {one.wanted for one in found.answers} == set(shown) >= {one.predicted for one in found.answers}


def test_a_number_with_a_decimal_comma_is_judged_in_new_rows(tmp_path):
    rows = [["a", "price"], *([f"{n * n},5", f"{2 * n},25"] for n in range(40))]
    path = write(tmp_path / "euro.csv", rows, ";")
    result = run_ladder(path, tmp_path / "run", seconds=0.01)
    found = answers_of(saved.load(result.folder), path)
    assert found.answers[1].wanted == "2.25" and found.score is not None


def test_a_class_that_is_seldom_found_is_named_though_the_accuracy_is_high(tmp_path):
    draw = random.Random(2)
    rows = [["a", "fraud"], *([draw.random(), "yes" if n % 8 == 0 else "no"] for n in range(200))]
    result = run_ladder(write(tmp_path / "fraud.csv", rows), tmp_path / "run", seconds=0.5)
    weak = next(one for one in result.exam.classes if one.name == "yes")
    assert weak.examples == 5 and weak.is_weak
    assert f"it found {weak.found} of 5 of 'yes'" in " ".join(" ".join(result.lines()).split())


def test_pictures_that_cannot_be_read_are_left_out_if_they_are_few(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for n in range(20):
            image.new("RGB", (4, 4), (n, 0, 0)).save(tmp_path / "pets" / name / f"{n}.png")
    (tmp_path / "pets" / "cat" / "3.png").write_bytes(b"broken")
    data = own_data.read_own(tmp_path / "pets")
    assert sum(data.examples) == 39 and "1 pictures cannot be read" in data.notes[0]
    for n in range(4):
        (tmp_path / "pets" / "dog" / f"{n}.png").write_bytes(b"broken")
    with pytest.raises(BadInput, match="cannot be read as a picture"):
        own_data.read_own(tmp_path / "pets")


def test_pictures_with_their_channels_last_are_read(tmp_path):
    images = np.zeros((40, 8, 8, 3))
    images[..., 1] = 1.0
    np.savez(tmp_path / "last.npz", images=images, labels=np.arange(40) % 2)
    data = own_data.read_own(tmp_path / "last.npz")
    assert data.learn["images"].shape[1:] == (3, 8, 8) and bool((data.learn["images"][:, 1] == 1).all())


def test_a_text_that_is_not_utf_8_is_read_and_said(tmp_path):
    (tmp_path / "old.txt").write_bytes("Der Käse läuft über die Straße. ".encode("cp1252") * 200)
    data = own_data.read_own(tmp_path / "old.txt")
    assert "ä" in data.facts["alphabet"] and "cp1252" in data.notes[0]
    (tmp_path / "wide.txt").write_text("Käse und Brot. " * 400, encoding="utf-16")
    assert "ä" in own_data.read_own(tmp_path / "wide.txt").facts["alphabet"]


def test_new_rows_without_a_column_that_is_needed_are_refused(tmp_path):
    run_ladder(circles(tmp_path / "c.csv", 60), tmp_path / "run", seconds=0.001)
    network = saved.load(tmp_path / "run")
    with pytest.raises(BadInput, match=r"no column b.*\n.*a, b"):
        answers_of(network, write(tmp_path / "new.csv", [["a", "c"], [1, 2]]))
    with pytest.raises(UnknownName, match="no file"):
        answers_of(network, tmp_path / "nothing.csv")


def test_unknown_words_and_missing_values_of_new_rows_are_said(tmp_path):
    draw = random.Random(0)
    rows = [[draw.random(), draw.choice(("red", "blue")), draw.choice("xy")] for _ in range(60)]
    run_ladder(write(tmp_path / "a.csv", [["v", "colour", "t"], *rows]), tmp_path / "run", seconds=0.001)
    new = write(tmp_path / "new.csv", [["v", "colour"], ["", "pink"], [0.5, "red"]])
    said = " ".join(answers_of(saved.load(tmp_path / "run"), new).notes)
    assert "'v': 1 missing values" in said and "never learned: pink" in said


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_damaged_numpy_file_is_an_error_and_never_a_fault(tmp_path, suffix):
    """Each byte is changed once: zipfile, zlib, tokenize and NumPy raise errors of their own."""
    path, draw = tmp_path / f"a{suffix}", np.random.default_rng(0)
    table = np.hstack([draw.random((60, 3)), np.arange(60)[:, None] % 2])
    np.save(path, table) if suffix == ".npy" else np.savez_compressed(path, x=table[:, :3], y=table[:, 3])
    body = path.read_bytes()
    places = [place for place in range(0, 400, 3) if place < len(body)]
    damaged = [body[:place] + bytes([body[place] ^ 0xFF]) + body[place + 1 :] for place in places]
    noticed = 0
    for data in (*damaged, body[:-30], body[30:], b"", b"PK"):
        path.write_bytes(data)
        try:
            own_data.read_own(path)
        except BadInput:
            noticed += 1
    assert noticed > 10


@pytest.mark.parametrize("values", [np.zeros((60, 0)), np.zeros((0, 4)), np.full((60, 4), np.inf)])
def test_arrays_without_a_usable_value_are_refused(tmp_path, values):
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(BadInput):
        own_data.read_own(tmp_path / "a.npy")


def test_infinite_values_of_an_array_count_as_missing(tmp_path):
    table = np.random.default_rng(0).random((60, 3))
    table[:, 2], table[3, 0] = np.arange(60) % 2, -np.inf
    np.save(tmp_path / "a.npy", table)
    assert any("1 missing values" in note for note in own_data.read_own(tmp_path / "a.npy").notes)


def test_the_notes_of_a_ladder_that_changed_are_noticed(tmp_path):
    path = circles(tmp_path / "c.csv", 60)
    run_ladder(path, tmp_path / "run", seconds=0.001)
    notes = tmp_path / "run" / ladder._NOTES
    whole = notes.read_text()
    for text, said in (
        (whole.replace('"rounds": 1', '"rounds": 2'), "checksum differs"),
        ('{"identity": ' + json.dumps(json.loads(whole)["identity"]) + "}", "rungs must be a list"),
    ):
        notes.write_text(text)
        with pytest.raises(BadInput, match=said):
            run_ladder(path, tmp_path / "run", seconds=0.001)


@pytest.mark.parametrize("changed", ["form", "preparation"])
def test_a_saved_network_whose_description_is_not_of_it_is_refused(tmp_path, changed):
    path = circles(tmp_path / "c.csv", 60)
    run_ladder(path, tmp_path / "run", seconds=0.001)
    trees, note = checkpoint.load(tmp_path / "run" / saved.NAME)
    if changed == "form":
        note["form"] = "sound"
    else:
        note["preparation"]["inputs"].pop()
    checkpoint.save(tmp_path / "run" / saved.NAME, trees, note)
    with pytest.raises(BadInput, match="does not fit itself"):
        answers_of(saved.load(tmp_path / "run"), path)


def test_places_that_hold_no_network_are_refused(tmp_path):
    with pytest.raises(UnknownName, match="no saved network"):
        saved.load(tmp_path)
    (tmp_path / saved.NAME).write_bytes(b"nothing")
    with pytest.raises(BadInput, match="damaged"):
        saved.load(tmp_path)


@pytest.mark.parametrize("form", ["images", "text", "numpy"])
def test_pictures_texts_and_numpy_files_climb_too(tmp_path, form):
    if form == "text":
        path = tmp_path / "a.txt"
        path.write_text("the cat sat on the mat. " * 300)
    else:
        draw = np.random.default_rng(0)
        labels = np.arange(60) % 2
        images = draw.random((60, 8, 8)) * 0.5 + labels[:, None, None] * 0.4
        path = tmp_path / "a.npz"
        np.savez(path, **({"images": images} if form == "images" else {"x": images[:, :, 0]}), y=labels)
    result = run_ladder(path, tmp_path / "run", target=0.9, seconds=20)
    assert result.form == {"numpy": "table"}.get(form, form)
    assert result.exam.score > result.exam.baseline
    found = answers_of(saved.load(tmp_path / "run"), path)
    assert found.answers and (form != "text" or len(found.answers[0].predicted) == 300)


def test_the_plot_marks_each_point_with_its_rung_and_the_target():
    rung = RungResult(
        number=1,
        title="",
        nodes="",
        score=0.5,
        best_round=1,
        rounds=2,
        seconds=2.0,
        complete=True,
        parameters=1,
        points=((1.0, 0.2), (2.0, 0.5)),
    )
    second = dataclasses.replace(rung, number=2, points=((1.0, 0.6), (2.0, 0.9)))
    drawn = plot([rung, second], "accuracy", target=0.9)
    grid = [line[10:] for line in drawn[1:10]]
    assert "".join(grid).count("1") == 2 and "".join(grid).count("2") == 2
    assert grid[0].startswith("---") and "2" in grid[0] and grid[-1].strip() == "1"
    assert "4.00 s" in drawn[-1]
