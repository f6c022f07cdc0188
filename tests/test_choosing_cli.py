"""`windtunnel advise` for a task or for data, and `windtunnel network use`: journeys and mistakes."""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
from pathlib import Path

import pytest
from conftest import run
from terminal import CTRL_C, CTRL_D, Terminal

from windtunnel.choosing.task import KINDS

IMAGES = ("--task", "classify images", "--inputs", "784", "--outputs", "10", "--examples", "60000")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fruit(name: str, rows: int = 90, labelled: bool = True, seed: int = 0) -> None:
    """Fruit by weight and colour; some weights are missing."""
    draw = random.Random(seed)
    with open(name, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["weight", "colour", "label", *(["fruit"] if labelled else [])])
        for number in range(rows):
            kind = draw.choice(("apple", "melon"))
            weight = f"{draw.gauss(150 if kind == 'apple' else 1500, 60):.0f}"
            colour = draw.choice(("red", "green") if kind == "apple" else ("green", "yellow"))
            cells = ["" if number % 20 == 3 else weight, colour, f"tag {number}"]
            writer.writerow([*cells, *([kind] if labelled else [])])


def choice_in(text: str, name: str) -> str:
    """The number that the terminal printed before this choice."""
    found = re.search(rf"^ +(\d+)  {re.escape(name)}", text, re.MULTILINE)
    assert found, text
    return found[1]


def commands_in(text: str) -> list[list[str]]:
    """The commands that a text prints, ready to run."""
    whole = text.replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in whole.splitlines() if line.startswith("  windtunnel ")]


def test_a_beginner_gets_from_a_bare_terminal_to_predictions_by_what_is_printed(folder):
    fruit("fruit.csv")
    fruit("new.csv", rows=5, labelled=False, seed=1)
    with Terminal("advise") as terminal:
        asked = terminal.wait_for("]: ")
        terminal.type(choice_in(asked, "unclear"))
        asked = terminal.wait_for("]: ")
        terminal.type(choice_in(asked, "fruit.csv"))
        asked = terminal.wait_for("]: ")
        terminal.type(choice_in(asked, "fruit"))
        asked = terminal.wait_for("]: ")
        terminal.type(re.findall(r"\d\.\d+", asked)[0])  # the example in the question
        asked = terminal.wait_for("]: ")
        terminal.type(re.findall(r"\d+s", asked)[0])
        code, said = terminal.end()
        shown = terminal.text
    assert code == 0
    assert max(len(line) for line in shown.replace("\r", "\n").splitlines()) <= 80
    plain = " ".join(said.split())
    for part in (
        "predicts 'fruit', 2 classes",
        "'label' is left out",
        "missing values are filled with the median",
        "'colour' is text",
        "<- chosen",
        "it had never seen",
        "reached",
    ):
        assert part in plain, part
    again, use = commands_in(said)
    assert again[:3] == ["advise", "--task", "unclear"] and use[:2] == ["network", "use"]
    assert run(*use).returncode == 0
    predicted = run(*[word if word != "fruit.csv" else "new.csv" for word in use], "--to", "out.csv")
    assert predicted.returncode == 0, predicted.stderr
    with open("out.csv") as file:
        answers = [row[1] for row in csv.reader(file)][1:]
    with open("new.csv") as file:
        weights = [row[0] for row in csv.reader(file)][1:]
    known = [(answer, int(weight)) for answer, weight in zip(answers, weights, strict=True) if weight]
    assert all((answer == "melon") == (weight > 800) for answer, weight in known)
    done = run(*again)
    assert done.returncode == 0 and "training" not in done.stderr, "the same command trains nothing twice"


def test_wrong_answers_are_asked_again_with_what_is_allowed():
    Path("broken.csv").write_text("")
    with Terminal("advise") as terminal:
        for wrong in ("chess", "0", "99"):
            terminal.wait_for("Your choice [10]: ")
            terminal.type(wrong)
            terminal.wait_for(f"is not a number from 1 to {len(KINDS)}.")
        terminal.wait_for("]: ")
        terminal.type("2")
        for wrong, said in (("nothing.csv", "no file or folder"), ("1", "is empty")):
            terminal.wait_for("Your data [1]: ")
            terminal.type(wrong)
            terminal.wait_for(said)
        terminal.wait_for("Your data [1]: ")
        terminal.type("2")
        for right, wrong, said in (
            ("784", "many", "not a whole number"),
            ("10", "-3", "not a whole number"),
            ("60000", "0", "not a whole number"),
            ("i7-3820", "i7-9999", "i7-3820"),
            ("3%", "3", "between 0 and 1"),
            ("10m", "soon", "45s, 10m or 2h"),
        ):
            terminal.wait_for("]: ")
            terminal.type(wrong)
            terminal.wait_for(said)
            terminal.wait_for("]: ")
            terminal.type(right)
        code, said = terminal.end()
    assert code == 0 and "take a deep convolutional network (dcn)" in said and "III.D" in said
    assert ["predict", "dcn"] in [words[:2] for words in commands_in(said)]


@pytest.mark.parametrize(
    ("key", "code", "said"), [(CTRL_C, 130, "Interrupted"), (CTRL_D, 2, "answers ended")]
)
def test_ctrl_c_and_ctrl_d_end_politely(key, code, said):
    with Terminal("advise") as terminal:
        terminal.wait_for("]: ")
        terminal.press(key)
        ended, text = terminal.end(key=key)
    assert ended == code and said in text and "nothing was trained" in text and "Traceback" not in text


def test_ctrl_c_in_the_training_says_how_to_go_on():
    fruit("fruit.csv", rows=4000)  # so many that the training is not over when the key is pressed
    with Terminal("advise", "--data", "fruit.csv", "--target", "weight", "--time", "1h") as terminal:
        terminal.wait_for("rung 1, no hidden layer: round 3")
        terminal.press(CTRL_C)
        code, text = terminal.end()
    assert code == 130 and "The same command continues" in " ".join(text.split())


def test_without_a_terminal_the_options_are_named():
    done = run("advise")
    assert done.returncode == 2 and "--task" in done.stderr and "--data" in done.stderr


def test_the_example_of_the_help_answers_with_rules_nodes_time_and_commands():
    done = run("advise", *IMAGES, "--error", "0.03", "--time", "10m", "--on", "i7-3820", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    plain = json.loads(run("advise", *IMAGES, "--on", "i7-3820", "--json").stdout)
    assert plain["network"] == "dcn" and plain["training_seconds"] > 0
    assert "alexnet" in plain["landmarks"] and {rule["section"] for rule in plain["rules"]} >= {
        "III.C",
        "III.D",
    }
    assert run(*commands_in(done.stdout)[0]).returncode == 0, "the command to predict runs as it is printed"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--task", "win at chess"), "classify images"),
        (("--task", "classify images"), "--inputs"),
        ((*IMAGES, "--error", "3"), "0.03 or 3%"),
        ((*IMAGES, "--time", "soon"), "45s"),
        ((*IMAGES, "--on", "i7-9999"), "i7-3820"),
        ((*IMAGES, "--inputs", "0"), "--inputs must be"),
        ((*IMAGES, "--target", "x"), "--data"),
        (("--data", "nothing.csv"), "no file or folder"),
        (("--data", "strange.xyz"), "FILE.csv"),
        (("--data", "same.csv"), "one class only"),
        (("--data", "short.csv"), "at least 30"),
        (("--data", "fruit.csv", "--target", "fruti"), "Did you mean 'fruit'"),
        (("--data", "fruit.csv", "--task", "classify images"), "classify tables"),
        (("--data", "fruit.csv", "--task", "enlarge"), "columns of words: colour"),
        (("--data", "fruit.csv", "--task", "classify audio", "--target", "weight"), "'weight' of fruit.csv"),
        (("--data", "fruit.csv", "--on", "h200"), "this machine only"),
        (("--data", "fruit.csv", "--plot", "a.xyz"), ".png"),
        (("--data", "fruit.csv", "--inputs", "3"), "counted in your data"),
        (("--data", "fruit.csv", "--to", "strange.xyz"), "--to"),
        (("--data", "folder", "--target", "fruit"), "for tables"),
        (("--data", "words.csv"), "no column is left"),
        (("--data", "short.txt"), "at least 5,000"),
        (("--data", "folder"), "class folder"),
        (("--data", "bad.npy"), "NumPy"),
    ],
)
def test_every_mistake_gets_a_clear_message(words, said):
    fruit("fruit.csv")
    Path("strange.xyz").write_text("1")
    Path("same.csv").write_text("a,b\n" + "1,x\n2,x\n" * 20)
    Path("short.csv").write_text("a,b\n1,x\n2,y\n")
    Path("words.csv").write_text("a,b\n" + "".join(f"name {i},{'xy'[i % 2]}\n" for i in range(40)))
    Path("short.txt").write_text("too short")
    Path("bad.npy").write_text("no numbers")
    Path("folder").mkdir()
    done = run("advise", *words)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert said in " ".join(done.stderr.split()), done.stderr


def test_a_target_that_no_rung_reaches_is_no_failure_but_is_said():
    fruit("fruit.csv", rows=40)
    done = run(
        "advise", "--data", "fruit.csv", "--target", "colour", "--error", "0.01%", "--time", "1s", "--json"
    )
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["reached"] is False and found["exam"]["baseline"] > 0


def test_the_chart_is_drawn_where_asked(folder):
    fruit("fruit.csv", rows=60)
    done = run("advise", "--data", "fruit.csv", "--time", "1s", "--to", "run", "--plot", "p.svg")
    assert done.returncode == 0, done.stderr
    assert "seconds of training" in Path("p.svg").read_text()
    assert (folder / "run" / "network.safetensors").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing", "--data", "fruit.csv"), "no saved network"),
        (("run", "--data", "nothing.csv"), "no file or folder"),
        (("run", "--data", "other.csv"), "no column weight, colour"),
        (("run", "--data", "fruit.csv", "--to", "missing/out.csv"), "cannot be written"),
        (("run", "--data", "text.txt"), "is not a table"),
    ],
)
def test_mistakes_with_a_saved_network_get_a_clear_message(words, said, folder):
    fruit("fruit.csv", rows=40)
    Path("other.csv").write_text("a,b\n1,2\n")
    Path("text.txt").write_text("text")
    if words[0] == "run":
        assert run("advise", "--data", "fruit.csv", "--time", "1s", "--to", "run").returncode == 0
    done = run("network", "use", *words)
    assert done.returncode == 2 and said in " ".join(done.stderr.split()), done.stderr
