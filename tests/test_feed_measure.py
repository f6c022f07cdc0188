"""Measuring a feed: files, the page cache, decoding, the DataLoader, and the passes that split a step."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import run

import windtunnel as wt
from windtunnel import ownership
from windtunnel.errors import BadInput, BadJob, BadRecord, StoreError, Unavailable
from windtunnel.feed.measured import forecast_passes
from windtunnel.measurement.feed.decoding import BatchShape, Decoder
from windtunnel.measurement.feed.files import (
    DataFiles,
    cached_share,
    data_files,
    drop_from_cache,
    find_files,
    jpeg_of,
    read_spec,
)
from windtunnel.measurement.feed.loading import EndlessBatches, FileExamples, load_batches
from windtunnel.measurement.feed.measure import FeedMeasurement, FeedPass, PassName, measure_feed, passes_of
from windtunnel.measurement.feed.probe import FeedProbe, probe_feed
from windtunnel.measurement.processes import MeasureOptions
from windtunnel.measurement.store import Store
from windtunnel.strategy import Strategy

QUICK = wt.Protocol(processes=1, most_processes=1, seconds=0.05, warm_seconds=0.05, timeout_seconds=900)


def folder_of(place: Path, count: int = 12, size: int = 3_000) -> DataFiles:
    for number in range(count):
        (place / f"{number}.bin").write_bytes(np.random.default_rng(number).bytes(size))
    return find_files(place)


# Files


def test_a_folder_has_the_files_of_its_commonest_kind(tmp_path: Path) -> None:
    (tmp_path / "class a").mkdir()
    for number in range(3):
        np.save(tmp_path / "class a" / f"{number}.npy", np.ones(10))
    (tmp_path / "readme.txt").write_text("no example")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / ".hidden").write_text("x")
    found = find_files(tmp_path)
    assert found.kind == "npy" and len(found.files) == 3
    assert found.total_bytes == sum(path.stat().st_size for path in found.files)


@pytest.mark.parametrize(
    ("text", "kind", "count", "size", "folder"),
    [
        ("jpeg:2000x110KB", "jpeg", 2000, 110_000, ""),
        ("npy:5x1MiB@/mnt/disk", "npy", 5, 2**20, "/mnt/disk"),
        ("raw:1x1", "raw", 1, 1, ""),
    ],
)
def test_a_specification_is_read(text: str, kind: str, count: int, size: int, folder: str) -> None:
    spec = read_spec(text)
    assert spec is not None
    assert (spec.kind, spec.count, spec.example_bytes, spec.folder) == (kind, count, size, folder)


@pytest.mark.parametrize("text", ["photos", "some/folder", "C:photos", "jpeg", "jpeg:manyx1KB"])
def test_anything_else_is_a_folder(text: str) -> None:
    assert read_spec(text) is None


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("gif:10x1KB", "raw, npy, jpeg, not gif"),
        ("raw:0x1KB", "number of files"),
        ("raw:10x0", "at least 1 bytes"),
        ("jpeg:10x10", "at least 1000 bytes"),
        ("raw:10x5parsecs", "unknown unit"),
        ("raw:1000000x1TB", "left"),
        ("raw:1x1KB@/no/such/folder", "cannot be used"),
    ],
)
def test_a_bad_specification_is_a_clear_error(text: str, match: str) -> None:
    with pytest.raises(BadInput, match=match), data_files(text):
        pass


@pytest.mark.parametrize("text", ["raw:3x2KB", "npy:3x2KB", "jpeg:3x20KB"])
def test_specified_files_are_written_with_their_size_and_removed(text: str, tmp_path: Path) -> None:
    spec = read_spec(text)
    assert spec is not None
    with data_files(f"{text}@{tmp_path}") as found:
        assert len(found.files) == 3 and found.kind == spec.kind
        assert found.example_bytes == pytest.approx(spec.example_bytes, rel=0.1)
        assert tmp_path in found.folder.parents
    assert not list(tmp_path.iterdir())


def test_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    code = "from windtunnel import ownership; print(ownership.own_mark())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    abandoned = tmp_path / f"windtunnel-data-{done.stdout.strip()}-x"
    own = tmp_path / f"windtunnel-data-{ownership.own_mark()}-y"
    abandoned.mkdir()
    own.mkdir()
    with data_files(f"raw:1x1KB@{tmp_path}"):
        assert not abandoned.exists() and own.exists()


def test_bad_folders_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such folder"):
        find_files(tmp_path / "nothing")
    with pytest.raises(BadInput, match="no file with any content"):
        find_files(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInput, match="is a file"):
        find_files(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser reads everything")
def test_an_unreadable_folder_is_a_clear_error(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    inner.chmod(0)
    try:
        with pytest.raises(BadInput, match="cannot be read"):
            find_files(tmp_path)
    finally:
        inner.chmod(0o700)


def test_the_page_cache_holds_what_was_read_and_forgets_what_it_is_told_to(tmp_path: Path) -> None:
    found = folder_of(tmp_path, count=4, size=200_000)
    for path in found.files:
        path.read_bytes()
    if cached_share(found.files) is None:
        pytest.skip("this system does not say what its page cache holds")

    def read() -> None:
        for path in found.files:
            path.read_bytes()

    def becomes(act: Callable[[], None], *shares: float) -> bool:
        """Whether the cache has one of these shares after it. A system that is short of memory may forget a
        page by itself, and one that is busy may keep one for a moment."""
        for _ in range(20):
            act()
            if cached_share(found.files) in shares:
                return True
            time.sleep(0.1)
        return False

    assert becomes(read, 1.0)
    assert becomes(lambda: drop_from_cache(found.files), 0.0, 1.0), "a file system in memory forgets nothing"
    assert becomes(read, 1.0)


# Decoding


def test_decoded_examples_have_the_shape_of_the_job() -> None:
    picture = torch.zeros(3, 32, 48)
    decoded = Decoder(kind="jpeg", one=picture)(jpeg_of(20_000))
    assert decoded.shape == (3, 32, 48) and 0 <= decoded.min() < decoded.max() <= 1
    numbers = Decoder(kind="raw", one=torch.zeros(7))(bytes(range(200, 220)))
    assert numbers.tolist() == pytest.approx([n / 255 for n in range(200, 207)])
    repeated = Decoder(kind="raw", one=torch.zeros(2, 3))(bytes([255, 0]))
    assert repeated.flatten().tolist() == [1, 0, 1, 0, 1, 0]


def test_tokens_stay_the_jobs_own_since_others_may_be_invalid() -> None:
    tokens = torch.tensor([3, 1, 2])
    assert Decoder(kind="raw", one=tokens)(b"\xff" * 100).tolist() == [3, 1, 2]


def test_a_jobs_own_decoder_is_used() -> None:
    own = Decoder(kind="raw", one=torch.zeros(2), own=lambda stored: torch.full((2,), float(len(stored))))
    assert own(b"abc").tolist() == [3.0, 3.0]


@pytest.mark.parametrize("kind", ["npy", "jpeg"])
def test_a_file_that_is_not_what_its_name_says_is_a_clear_error(kind: str) -> None:
    with pytest.raises(BadInput, match=f"A {kind} file of 9 bytes cannot be decoded"):
        Decoder(kind=kind, one=torch.zeros(4))(b"not that.")  # type: ignore[arg-type]


def test_the_largest_tensor_of_numbers_comes_from_files_along_its_examples() -> None:
    batch = {"sequence": torch.zeros(5, 4, 2), "classes": torch.zeros(4, dtype=torch.long)}
    shape = BatchShape.of(batch, 4)
    assert shape.along == 1 and shape.one.shape == (5, 2)
    filled = shape.filled(torch.arange(40.0).reshape(4, 5, 2))
    assert filled["sequence"].shape == (5, 4, 2) and filled["sequence"][0, 1].tolist() == [10.0, 11.0]
    assert filled["classes"] is batch["classes"]
    with pytest.raises(BadJob, match="dimension of 7"):
        BatchShape.of(batch, 7)


# Loading


def test_batches_come_without_end_and_each_file_once_in_an_epoch() -> None:
    batches = iter(EndlessBatches(files=10, batch=5, seed=1))
    epochs = [sorted(next(batches) + next(batches)) for _ in range(3)]
    assert epochs == [list(range(10))] * 3
    larger = iter(EndlessBatches(files=2, batch=5, seed=1))
    assert len(next(larger)) == 5


@pytest.mark.parametrize("loaders", [0, 2])
def test_loaders_deliver_decoded_batches(tmp_path: Path, loaders: int) -> None:
    found = folder_of(tmp_path)
    examples = FileExamples(
        files=found.files, decode=Decoder(kind="raw", one=torch.zeros(10)), cold=hasattr(os, "posix_fadvise")
    )
    strategy = Strategy(data="storage", loaders=loaders)
    batches = load_batches(examples, batch=4, strategy=strategy, seed=0)
    for _ in range(5):
        assert next(batches).shape == (4, 10)


# Passes


def passes(**steps: float) -> FeedMeasurement:
    done = [
        FeedPass(name=name, step_seconds=s, low_seconds=s, high_seconds=s, processes=1, samples=1)
        for name, s in {PASSES[key]: s for key, s in steps.items()}.items()
    ]
    return FeedMeasurement(
        job="j",
        machine="here",
        data="d",
        example_bytes=1.0,
        examples=1,
        strategy={},
        batch=1,
        passes=tuple(done),
    )


PASSES: dict[str, PassName] = {
    "none": "none",
    "memory": "memory",
    "warm": "page-cache",
    "cold": "storage",
}


def test_the_passes_split_the_step_by_hand() -> None:
    """1 s without data, 1.5 s with copies, 3 s with decoding, 7 s from storage: compute 1, copy 0.5, decode
    1.5, read 4."""
    done = passes(none=1.0, memory=1.5, warm=3.0, cold=7.0)
    assert done.parts == {"compute": 1.0, "copy": 0.5, "decode": 1.5, "read": 4.0}
    assert done.parts == done.increments and done.step_seconds == 7.0
    assert not done.unclear


def test_noise_never_makes_a_part_negative_and_parts_sum_to_the_step() -> None:
    """The pass from memory happened to be faster than the one without data: what the clock said is kept among
    the increments, the parts have no copy."""
    done = passes(none=1.1, memory=1.0, warm=3.0, cold=2.8)
    assert done.increments["copy"] == pytest.approx(-0.1)
    assert done.parts == pytest.approx({"compute": 1.0, "copy": 0.0, "decode": 1.8, "read": 0.0})
    assert sum(done.parts.values()) == pytest.approx(done.step_seconds)


def test_a_part_is_unclear_if_the_intervals_of_its_passes_overlap() -> None:
    done = passes(none=1.0, warm=1.1, cold=2.0)
    wide = [dataclasses.replace(each, low_seconds=each.step_seconds - 0.08) for each in done.passes]
    assert dataclasses.replace(done, passes=tuple(wide)).unclear == ()
    wider = [dataclasses.replace(each, high_seconds=each.step_seconds + 0.15) for each in wide]
    assert dataclasses.replace(done, passes=tuple(wider)).unclear == ("decode",)


def test_passes_take_turns(tmp_path: Path) -> None:
    """One process of each pass, then the next of each, so that a slow minute meets all passes."""
    heard: list[str] = []
    options = MeasureOptions(progress=lambda stage: heard.append(stage.phase))
    protocol = dataclasses.replace(QUICK, processes=2, most_processes=2)
    measure_feed(
        wt.Workload.named("ffn"),
        wt.Machine.here().with_cpu_only(),
        Strategy(data="storage", batch=4, threads=1),
        folder_of(tmp_path),
        protocol=protocol,
        store=Store(tmp_path / "s.sqlite"),
        options=options,
    )
    order = [phase.partition("data: ")[2].rstrip(")") for phase in heard if phase.startswith("done")]
    assert order == ["none", "page-cache", "storage"] * 2


def test_a_cpu_has_no_pass_of_copies() -> None:
    strategy = Strategy(data="storage", loaders=2, batch=4)
    names = [[name for name, _ in passes_of(strategy, wt.Machine.named(m))] for m in ("i7-3820", "h200")]
    assert names == [["none", "page-cache", "storage"], ["none", "memory", "page-cache", "storage"]]


@pytest.mark.parametrize(
    ("options", "match"),
    [({"prefetch": 1}, "copies to a GPU"), ({"pinned": True}, "copies to a GPU"), ({"direct": True}, "GPUD")],
)
def test_what_cannot_be_measured_here_is_refused(
    tmp_path: Path, options: dict[str, object], match: str
) -> None:
    strategy = Strategy(data="storage", **options)  # type: ignore[arg-type]
    here, job = wt.Machine.here().with_cpu_only(), wt.Workload.named("ffn")
    with pytest.raises(Unavailable, match=match):
        measure_feed(
            job, here, strategy, folder_of(tmp_path), protocol=QUICK, store=Store(tmp_path / "s.sqlite")
        )


def test_data_in_files_cannot_be_measured_without_naming_files() -> None:
    with pytest.raises(BadRecord, match="none are named"):
        wt.measure(
            wt.Workload.named("ffn"), wt.Machine.here().with_cpu_only(), Strategy(data="storage", loaders=1)
        )


def test_a_forecast_of_the_passes_grows_with_what_they_add(tmp_path: Path) -> None:
    found, job = folder_of(tmp_path), wt.Workload.named("ffn")
    strategy = Strategy(data="storage", batch=8, threads=1)
    probe = FeedProbe(decode_seconds=5e-3, read_rate=1e6, latency_seconds=1e-3)
    here = wt.Machine.named("emerald-rapids-2-cores")
    steps = [each.step_seconds for each in forecast_passes(job, here, strategy, found, probe).values()]
    assert steps == sorted(steps) and steps[1] > steps[0] + 8 * 5e-3


def test_single_files_are_timed(tmp_path: Path) -> None:
    found = folder_of(tmp_path, count=4, size=100_000)
    probe = probe_feed(wt.Workload.named("ffn"), Strategy(data="storage"), found)
    assert probe.decode_seconds > 0 and probe.read_rate > 0 and probe.latency_seconds >= 0


# At the command line


def test_the_command_splits_a_step_beside_the_forecast(tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite"
    words = ("measure", "ffn", "--data", f"raw:40x20KB@{tmp_path}", "--batch", "8", "--loaders", "1")
    short = ("--threads", "1", "--processes", "1", "--seconds", "0.1", "--json")
    done = run(*words, *short, store=store)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert [each["name"] for each in data["passes"]] == ["none", "page-cache", "storage"]
    assert sum(data["parts"].values()) == pytest.approx(data["step_seconds"])
    assert set(data["forecast"]["passes"]) == {"none", "page-cache", "storage"}
    warm, cold = data["passes"][1], data["passes"][2]
    assert not any("does not say" in text for text in data["cautions"]) or warm.get("cached") is None
    if warm.get("cached") is not None:
        assert warm["cached"] > 0.9
        assert cold["cached"] < 0.1 or any("not cold" in text for text in data["cautions"])
    cells = Store(store).results()
    assert len(cells) == 3 and all(cell.state == "done" for cell in cells)
    assert all(Store(store).reports(cell.id)[0].steady for cell in cells), "raw samples are kept"
    assert not [path for path in tmp_path.iterdir() if path.is_dir()], "the files are removed"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("no/such/folder", "no such folder"),
        ("EMPTY", "no file with any content"),
        ("jpeg:5x1", "at least 1000 bytes"),
        ("storage", "files must be named"),
    ],
)
def test_bad_data_are_clear_errors_before_anything_runs(tmp_path: Path, data: str, text: str) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    named = str(empty) if data == "EMPTY" else data
    done = run("measure", "ffn", "--data", named, store=tmp_path / "s.sqlite")
    assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr


def test_a_disk_that_fills_while_files_are_written_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StoreError, match="cannot be written"), data_files(f"raw:2x1KB@{tmp_path}"):
        pass
    assert not list(tmp_path.iterdir()), "nothing is left"


def test_a_file_that_cannot_be_decoded_is_named_before_anything_runs(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.npy").write_bytes(b"not an array")
    done = run("measure", "ffn", "--data", str(folder), store=tmp_path / "s.sqlite")
    assert done.returncode == 2 and "cannot be decoded" in done.stderr and "Traceback" not in done.stderr


def test_a_killed_measurement_leaves_no_process_and_continues(tmp_path: Path) -> None:
    """Killed in the second pass: the first one is in the store, no loader lives on, and the same command
    measures only what is missing."""
    store, environment = tmp_path / "s.sqlite", {**os.environ, "WINDTUNNEL_STORE": str(tmp_path / "s.sqlite")}
    folder = tmp_path / "data"
    folder.mkdir()
    folder_of(folder, count=20)
    words = ["measure", "ffn", "--data", str(folder), "--batch", "4", "--loaders", "1", "--threads", "1"]
    command = [sys.executable, "-m", "windtunnel", *words, "--processes", "1", "--seconds", "0.1", "--json"]
    child = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    for line in child.stderr:
        if "done (data: none)" in line:
            break
    time.sleep(0.5)
    child.send_signal(signal.SIGKILL)
    child.wait()
    again = run(*words, "--processes", "1", "--seconds", "0.1", "--json", store=store)
    assert again.returncode == 0, again.stderr
    states = [cell.state for cell in Store(store).results()]
    assert states.count("done") >= 3
