"""Names, paths and labels of users, shown harmlessly wherever they are printed."""

from __future__ import annotations

import ast
import csv
import dataclasses
import io
import json
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import fuzzed
import pytest
from conftest import run
from hypothesis import given, settings
from hypothesis import strategies as st

import windtunnel as wt
from windtunnel import foreign
from windtunnel.cli import words as cli_words
from windtunnel.reports import charts, page
from windtunnel.study import export
from windtunnel.study.rows import StudyRow

HOSTILE = ["\x1b[2J", "a\u202eb", "[/bold]", "[red]x", "a\nb", "a\rb", "\x9b31m", "\x00", '" class="', "<b>&"]
HARMFUL = set(map(chr, range(32))) - {"\n"} | {"\x9b", "\u202e", "\u2066", "\u2028", "\x7f"}


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text())
def test_what_is_shown_holds_no_character_that_does_anything(text: str) -> None:
    assert not HARMFUL & set(foreign.shown(text))
    assert "\n" not in foreign.shown(text)
    foreign.shown(text).encode()
    assert foreign.shown_lines(text).count("\n") == text.count("\n")


def test_plain_words_of_any_language_stay_as_they_are() -> None:
    for text in ("größe", "数据", "עברית", "emoji 🚀", "path/to/file.py:build", "a-b_c [1]"):
        assert foreign.shown(text) == text


def test_the_number_of_a_character_is_shown_as_python_writes_it() -> None:
    assert foreign.shown("a\x1bb\nc\u202ed\U000e0041") == r"a\x1bb\nc\u202ed\U000e0041"


JOB = """
import torch
import windtunnel as wt

def build(label=""):
    if label:
        raise ValueError(label)
    return wt.Workload(
        name={name!r},
        model=lambda: torch.nn.Linear(8, 8),
        batch=lambda n: torch.randn(n, 8),
        loss=lambda model, x: model(x).mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
"""


def is_harmless(text: str) -> bool:
    return not HARMFUL & set(text)


@pytest.mark.parametrize("name", ["\x1b[2J\x9b31m", "a\u202eb\r\x00", "[/bold][red]", 'a\nb" class="'])
def test_the_name_of_a_job_is_harmless_in_text_and_json(tmp_path: Path, name: str) -> None:
    path = tmp_path / "job.py"
    path.write_text(JOB.format(name=name))
    done = run("predict", f"{path}:build", "--on", "h200")
    assert done.returncode == 0, done.stderr
    assert is_harmless(done.stdout)
    assert foreign.shown(name) in done.stdout.splitlines()[0]  # in one line, and whole
    as_json = run("predict", f"{path}:build", "--on", "h200", "--json")
    assert is_harmless(as_json.stdout.replace("\n", ""))
    assert json.loads(as_json.stdout)["job"] == foreign.shown(name)


HOSTILE_WORD = "[/red]\x1b[2J\u202e\x9b\udcff"
# A word for each argument of a command; an argument with another name gets the job.
ARGUMENTS = {"study": ["wuensche-2018"], "job_and_sides": ["rnn", "threads=1", "batch=2"]}
MORE_PLACES = {
    "a file of a job": ["predict", f"{HOSTILE_WORD}.py:build"],
    "a setting's name": ["predict", "rnn", f"{HOSTILE_WORD}=1"],
    "a setting's value": ["predict", "rnn", f"n_rec={HOSTILE_WORD}"],
    "a machine file": ["predict", "rnn", "--on", f"{HOSTILE_WORD}.toml"],
    "an option": ["predict", "rnn", f"--{HOSTILE_WORD}"],
    "a command": [HOSTILE_WORD],
    "a side": ["compare", "rnn", "default", HOSTILE_WORD],
    "a folder": ["predict", "rnn", "--on", "h200", "--timeline", f"{HOSTILE_WORD}/x"],
    "an export": ["study", "export", "wuensche-2018", "--out", f"{HOSTILE_WORD}.zip"],
    "a host that may be named": ["serve", "--allow-host", HOSTILE_WORD],
    "a host to listen on": ["serve", "--host", HOSTILE_WORD],
    "a port": ["serve", "--port", HOSTILE_WORD],
    "a number of workers": ["serve", "--workers", HOSTILE_WORD],
    "a registered job": ["serve", "--job", HOSTILE_WORD],
    "a file of rows": ["serve", "--rows", HOSTILE_WORD],
    "a study to show": ["serve", "--study", HOSTILE_WORD],
    "a kind of table": ["validate", "--table", HOSTILE_WORD],
    "a framework to install": ["frameworks", "install", HOSTILE_WORD],
    "a framework to check": ["frameworks", "check", HOSTILE_WORD],
    "a report's file": ["report", "rnn", "--on", "k80", "--out", f"{HOSTILE_WORD}.html"],
}


def places() -> dict[str, list[str]]:
    """A hostile word in place of each argument of each command, and of the value of each option once."""
    found = dict(MORE_PLACES)
    seen = set[str]()
    for name, command in fuzzed.commands().items():
        if name == "serve":  # it never ends by itself; its options are tried below
            continue
        little = fuzzed.little(name)
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        usual = [word for each in arguments for word in ARGUMENTS.get(each.name, ["rnn"])]
        if arguments:
            found[f"{name}, {arguments[0].name}"] = [*name.split(), HOSTILE_WORD, *usual[1:], *little]
        for option, takes_value in fuzzed.options_of(name).items():
            if takes_value and option not in seen:
                seen.add(option)
                found[f"{name} {option}"] = [*name.split(), *usual, *little, option, HOSTILE_WORD]
    return found


@pytest.mark.parametrize("words", places().values(), ids=places())
def test_every_place_that_prints_a_users_word_shows_it_harmlessly(words: list[str], tmp_path: Path) -> None:
    done = run(*words, folder=tmp_path, **fuzzed.variables())
    assert done.returncode in (0, 2), done.stderr
    assert (done.stderr if done.returncode else done.stdout).strip()
    assert "Traceback" not in done.stderr
    assert is_harmless(done.stdout + done.stderr)


def test_every_option_of_every_command_is_among_those_places() -> None:
    tried = {word for words in places().values() for word in words}
    for name in fuzzed.commands():
        missing = {option for option, takes_value in fuzzed.options_of(name).items() if takes_value} - tried
        assert not missing, f"{name} {missing}"


def test_only_one_file_of_the_command_line_prints() -> None:
    """Others use cli.printing, which makes the words of users harmless."""
    folder = Path(wt.__file__).parent
    for path in [*(folder / "cli").glob("*.py"), *folder.glob("web/**/*.py")]:
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
        assert "print" not in names or path.name == "printing.py", f"{path.name}: use say() or tell()"


def test_json_stays_json_whatever_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    everything = "".join(map(chr, [*range(0x300), 0x202E, 0x2028, 0xFEFF, 0xD800]))
    cli_words.show(True, lambda: {"name": everything}, str)
    printed = capsys.readouterr().out
    assert is_harmless(printed) and json.loads(printed) == {"name": everything}


def test_what_a_job_prints_and_raises_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(JOB.format(name="x") + "\nprint('\\x1b[2J')")
    done = run("predict", f"{path}:build", "label=\x1b]0;title\x07", "--on", "h200")
    assert done.returncode == 2
    assert is_harmless(done.stderr)
    assert r"\x1b]0;title\x07" in done.stderr


def test_a_machine_file_is_shown_harmlessly(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    wt.Machine.named("i7-3820").save(path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "name": "m\x1b[2J\n[/b]"}))
    done = run("machine", "show", str(path))
    assert done.returncode == 0, done.stderr
    assert is_harmless(done.stdout)
    assert r"m\x1b[2J\n[/b]" in done.stdout


# ---------------------------------------------------------------- tables, charts and pages


def test_a_csv_file_holds_no_formula() -> None:
    assert foreign.shown_in_table("=1+1") == "'=1+1"
    assert foreign.shown_in_table("@x") == "'@x"
    assert foreign.shown_in_table("-cmd|x") == "'-cmd|x"
    for text in ("-1.5", "+2e-3", "rnn", ""):
        assert foreign.shown_in_table(text) == text
    row = {field.name: None for field in dataclasses.fields(StudyRow)}
    rows = export._in_table({**row, "framework": "=HYPERLINK()", "step_seconds": -1.0})
    assert (rows["framework"], rows["step_seconds"]) == ("'=HYPERLINK()", -1.0)


def test_an_exported_cell_is_no_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "flat", lambda rows: [{"framework": "=1+1", "batch": 1}])
    table = list(csv.DictReader(io.StringIO("".join(export._csv([])))))
    assert table == [{"framework": "'=1+1", "batch": "1"}]


LABELS = [' class="', '" onload="x', "<script>", "&amp;", 'id="a" url(#b)', "0.123456", "\x1b\u202e", "]]>"]


@pytest.mark.parametrize("label", LABELS)
def test_a_label_cannot_change_the_drawing_around_it(label: str) -> None:
    pytest.importorskip("vl_convert")
    spec = {
        "$schema": charts._SCHEMA,
        "title": label,
        "data": {"values": [{"x": label, "y": 1}]},
        "mark": {"type": "bar"},
        "encoding": {"x": {"field": "x", "type": "nominal"}, "y": {"field": "y", "type": "quantitative"}},
    }
    drawn = charts.inline(charts.Chart(spec=spec).svg(), "n1", label, label)
    root = ET.fromstring(drawn.replace("<svg ", '<svg xmlns:xlink="x" ', 1))
    assert foreign.shown(label).strip() in "".join(root.itertext())
    assert not any(" on" in f" {name}" for each in root.iter() for name in each.attrib)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("label", [*LABELS, *HOSTILE])
def test_a_page_shows_any_label_as_text(label: str) -> None:
    def tags(words: str) -> _Tags:
        body = page.table(words, [page.Column(head=words)], [[words]])
        found = _Tags()
        found.feed(page.document(words, words, [(words, body)], words))
        return found

    plain, hostile = tags("plain"), tags(label)
    assert hostile.found == plain.found
    assert is_harmless(hostile.text.replace("\n", ""))
