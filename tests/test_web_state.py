"""What a link of the page may hold: only names of the allow-list, only sizes within bounds."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windtunnel as wt
from windtunnel.errors import BadInput, BadJob, UnknownName, WindtunnelError
from windtunnel.web.allowed import AllowedJobs, read_settings
from windtunnel.web.pages.forecast import counted_name, next_states
from windtunnel.web.state import CountedMachine, PageState, read_state

JOBS = AllowedJobs()
HOSTILE_JOBS = [
    "my_job.py:build",
    "/etc/passwd",
    "../my_job.py:build",
    "timm:my_job.py",
    "timm:../my_job.py:build",
    "torchvision:models.resnet50",
    "os:system",
    "llm:gpt.toml",
    "job.toml",
    "transformers:bert;import os",
    "<script>alert(1)</script>",
    "resnet50\x00",
    "resnet50 ",
    "",
]


@pytest.mark.parametrize("name", HOSTILE_JOBS[:-1])
def test_a_browser_can_name_no_file_no_code_and_no_attribute(name: str) -> None:
    with pytest.raises(UnknownName, match="No job is called"):
        read_state([("job", name)], JOBS)


@pytest.mark.parametrize("name", ["resnet50", "rnn", "torchvision:resnet34", "timm:vit_tiny", "llm:llama"])
def test_networks_and_libraries_of_the_list_can_be_named(name: str) -> None:
    assert read_state([("job", name)], JOBS).job == name


def test_a_file_is_known_by_the_label_of_the_command_line_only(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def build(): ...\n")
    jobs = AllowedJobs.with_files([f"{file}:build"])
    assert jobs.address("mine.py:build") == f"{file}:build"
    assert str(tmp_path) not in "".join(jobs.files)
    for name in (f"{file}:build", "mine.py:other", "mine.py"):
        with pytest.raises(UnknownName):
            jobs.address(name)


def test_two_files_of_one_name_have_two_labels(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.py").write_text("")
    jobs = AllowedJobs.with_files([f"{tmp_path}/{folder}/job.py:build" for folder in ("a", "b")])
    assert list(jobs.files) == ["job.py:build", "job.py:build (2)"]


@pytest.mark.parametrize("address", ["nothing.py:build", "mine.txt:build", "mine.py", "mine.py:a b"])
def test_an_address_that_is_no_job_file_is_refused_at_the_start(address: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    with pytest.raises(BadJob):
        AllowedJobs.with_files([f"{tmp_path}/{address}"])


def test_a_changed_file_has_another_stamp(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("x = 1\n")
    jobs = AllowedJobs.with_files([f"{file}:build"])
    before = jobs.stamp("mine.py:build")
    os.utime(file, ns=(1, 1))
    assert jobs.stamp("mine.py:build") != before
    assert jobs.stamp("resnet50") == ""


@pytest.mark.parametrize(
    "text",
    [
        *("x", "=1", "a=../../etc/passwd", "a=/tmp/x", "a=file.toml", "a=__import__('os')", "a.b=1", "a=1;b"),
        "a=" + "9" * 500,
        " ".join(f"a{i}=1" for i in range(40)),
    ],
)
def test_settings_are_numbers_and_words_never_paths(text: str) -> None:
    with pytest.raises(BadInput):
        read_settings(text, "rnn")


def test_settings_of_transformers_are_sizes_only() -> None:
    assert read_settings("layers=2 hidden=128", "transformers:bert") == (("hidden", "128"), ("layers", "2"))
    with pytest.raises(BadInput, match="auto_map"):
        read_settings("auto_map=evil", "transformers:bert")


@pytest.mark.parametrize(
    "name", ["here", "cpu", "cuda", "my.toml", "../h200", "0xh200", "9999999xh200", "h200\n"]
)
def test_only_machines_of_the_catalogue_can_be_named(name: str) -> None:
    with pytest.raises(WindtunnelError):
        read_state([("on", name)], JOBS)


@pytest.mark.parametrize("name", ["h200", "8xh100", "4x8xh100", "2xdgx-a100", "3x1xi7-3820"])
def test_a_counted_machine_keeps_its_name(name: str) -> None:
    assert str(CountedMachine.read(name)) == name
    assert wt.Machine.named(name).name == name


@pytest.mark.parametrize("devices", [1, 2, 8, 16, 1024])
def test_a_number_of_devices_gives_a_machine_of_so_many(devices: int) -> None:
    machine = wt.Machine.named(counted_name("h100", devices))
    assert machine.devices * machine.nodes == devices


@pytest.mark.parametrize(
    "pairs",
    [
        [("batch", "0")],
        [("batch", "many")],
        [("batch", str(2**30))],
        [("batch", "1"), ("batch", "2")],
        [("precision", "int4")],
        [("accumulate", "60000"), ("pipeline_parallel", "64"), ("batch", "60000")],
        [("storage", "/dev/sda")],
        [("nothing", "1")],
        [("on", f"{count}xh200") for count in range(1, 9)],
        [("on", "100000x8xh200")],
    ],
)
def test_values_beyond_the_bounds_are_refused_with_words(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(WindtunnelError) as caught:
        read_state(pairs, JOBS)
    assert len(caught.value.message) < 300


STATES = st.builds(
    PageState,
    job=st.sampled_from(["rnn", "resnet50", "torchvision:resnet34"]),
    settings=st.sampled_from([(), (("n_rec", "50"), ("n_steps", "100"))]),
    on=st.lists(
        st.sampled_from(["h200", "8xh100", "4x8xa100-80gb", "i7-3820"]), min_size=1, max_size=4, unique=True
    ).map(tuple),
    strategy=st.builds(
        wt.Strategy,
        batch=st.sampled_from([None, 1, 64]),
        precision=st.sampled_from(["pytorch", "bf16"]),
        inference=st.booleans(),
        expandable_segments=st.booleans(),
    ),
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(STATES)
def test_a_link_reads_back_as_the_state_that_wrote_it(state: PageState) -> None:
    again = read_state(parse_qsl(state.query()), JOBS)
    assert again == state
    assert again.query() == state.query()


def test_fields_with_their_defaults_are_not_in_a_link() -> None:
    assert PageState().query() == "job=resnet50&on=h200"


def test_states_traced_ahead_are_neighbours_on_the_sliders_and_valid() -> None:
    state = read_state([("job", "resnet50"), ("on", "h200")], JOBS)
    found = list(next_states(state, {"batch": 32}))
    assert {each.strategy.batch for each in found} >= {2, 16, 32, 64, 512}
    assert {each.on[0] for each in found} >= {"h200", "2xh200", "8xh200"}
    for each in found:
        assert read_state(parse_qsl(each.query()), JOBS) == each
    compiled = state.changed(execution="compiled", batch=32)
    assert not list(next_states(compiled, {"batch": 32}))
