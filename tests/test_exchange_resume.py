"""Where real workers go on after a loss, and what is told of each kind of loss. No process starts here."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest
import torch

from windtunnel.errors import BadInput, BadJob, MeasurementFailed, Note, StoreError
from windtunnel.exchange.real import checkpoints, endings, losses
from windtunnel.exchange.real.log import WorkerLog
from windtunnel.exchange.real.messages import flatten, kind_of, unflatten
from windtunnel.exchange.real.spec import RealTraining
from windtunnel.learning import checkpoint, randomness

SYNC = RealTraining(network="ffn", workers=2, keep=True)
ASYNC = dataclasses.replace(SYNC, exchange="async")


def keep(folder: Path, spec: RealTraining, changes: int, ranks: tuple[int, ...]) -> None:
    note = {"identity": spec.identity(), "changes": changes, "seconds": 1.0, "where": f"{changes} changes"}
    for rank in ranks:
        path = checkpoints.part_path(folder, changes, rank)
        checkpoint.save(path, {"weights": [torch.ones(2)]}, note)


def last(spec: RealTraining, folder: Path) -> int:
    note = checkpoints.last_complete(spec, folder)
    return note["changes"] if note else 0


@pytest.mark.parametrize(
    ("fields", "keepers"),
    [
        ({"exchange": "sync"}, (0, 1)),
        ({"exchange": "diloco"}, (0, 1)),
        ({"exchange": "server"}, (0, 1, 2)),
        ({"exchange": "async"}, (2,)),
    ],
)
def test_a_checkpoint_is_complete_when_each_process_that_knows_something_has_written_its_part(
    tmp_path: Path, fields: dict[str, str], keepers: tuple[int, ...]
) -> None:
    spec = dataclasses.replace(SYNC, **fields)  # type: ignore[arg-type]
    assert spec.keepers == keepers and last(spec, tmp_path) == 0
    keep(tmp_path, spec, 23, keepers)
    keep(tmp_path, spec, 46, keepers[1:])
    assert last(spec, tmp_path) == 23
    keep(tmp_path, spec, 46, keepers[:1])
    assert last(spec, tmp_path) == 46


def test_one_change_takes_a_mini_batch_of_each_worker_that_has_a_part_in_it() -> None:
    four = dataclasses.replace(SYNC, workers=4, every=5)
    taken = {"sync": 4, "server": 4, "async": 1, "local": 20, "diloco": 20}
    assert {name: dataclasses.replace(four, exchange=name).per_change for name in taken} == taken
    assert dataclasses.replace(four, exchange="mixed", groups=2).per_change == 2


def test_a_process_keeps_its_last_two_parts(tmp_path: Path) -> None:
    for changes in (9, 23, 46, 69):
        keep(tmp_path, SYNC, changes, (0, 1))
    checkpoints.prune(tmp_path, 0, 46)
    assert [path.name for path in sorted(tmp_path.glob("state-*-0.*"))] == [
        "state-23-0.safetensors",
        "state-46-0.safetensors",
    ]
    assert len(list(tmp_path.glob("state-*-1.*"))) == 4


def test_a_damaged_part_is_left_out_for_the_checkpoint_before_it(tmp_path: Path) -> None:
    keep(tmp_path, SYNC, 23, (0, 1))
    keep(tmp_path, SYNC, 46, (0, 1))
    path = checkpoints.part_path(tmp_path, 46, 1)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.warns(Note, match="Continued from the checkpoint before it"):
        assert last(SYNC, tmp_path) == 23
    checkpoints.part_path(tmp_path, 23, 0).unlink()
    with pytest.raises(BadInput, match="damaged"):
        last(SYNC, tmp_path)


@pytest.mark.parametrize(
    "other", [{"workers": 3}, {"exchange": "async"}, {"seed": 1}, {"settings": {"hidden": 9}}]
)
def test_the_checkpoint_of_another_training_is_refused(tmp_path: Path, other: dict[str, object]) -> None:
    keep(tmp_path, SYNC, 23, (0, 1))
    with pytest.raises(BadInput, match=f"of another training: .*{next(iter(other))}"):
        last(dataclasses.replace(SYNC, **other), tmp_path)  # type: ignore[arg-type]
    longer = dataclasses.replace(SYNC, epochs=99, slow_rank=0, slow_factor=2.0)
    assert last(longer, tmp_path) == 23
    checkpoints.remove(tmp_path)
    assert not list(tmp_path.iterdir())


LOST, KILLED = endings.LOST_PEER, -9


@pytest.mark.parametrize(
    ("spec", "codes", "kind", "said"),
    [
        (SYNC, {0: LOST, 1: KILLED}, MeasurementFailed, "Worker 1 of 2 was killed by signal 9"),
        (SYNC, {0: LOST, 1: LOST}, MeasurementFailed, "Worker 0 of 2 lost its connection"),
        (SYNC, {0: LOST, 1: 1}, MeasurementFailed, r"ended with exit code 1 \(ValueError: my own bug\)"),
        (SYNC, {0: 0, 1: endings.LOST_NODE}, MeasurementFailed, "was lost with its machine"),
        (SYNC, {0: LOST, 1: endings.NOT_FINITE}, BadJob, "loss of worker 1 of 2 is no longer a finite"),
        (ASYNC, {0: 0, 1: endings.NOT_FINITE, 2: 0}, BadJob, "no longer a finite number"),
        (SYNC, {0: endings.CANNOT_WRITE, 1: LOST}, StoreError, "Worker 0 of 2 cannot write into"),
        (ASYNC, {0: LOST, 1: LOST, 2: KILLED}, MeasurementFailed, "The parameter server was killed"),
        (ASYNC, {0: KILLED, 1: KILLED, 2: 0}, MeasurementFailed, "No worker is left"),
    ],
)  # fmt: skip
def test_each_loss_is_told_with_where_the_same_command_continues(
    tmp_path: Path, spec: RealTraining, codes: dict[int, int], kind: type[Exception], said: str
) -> None:
    keep(tmp_path, spec, 23, spec.keepers)
    (tmp_path / "process-1.log").write_text("Traceback ...\nValueError: my own bug\n")
    with pytest.raises(kind, match=said) as failed:
        losses.refuse_failed(spec, tmp_path, codes, 40)
    assert kind is BadJob or "continues after 23 changes" in str(failed.value)


def test_without_a_folder_or_a_checkpoint_the_message_says_so(tmp_path: Path) -> None:
    assert "Give --folder" in losses.where_it_goes_on(dataclasses.replace(SYNC, keep=False), tmp_path)
    assert "begins anew" in losses.where_it_goes_on(SYNC, tmp_path)


def test_an_asynchronous_training_with_one_worker_left_is_no_failure(tmp_path: Path) -> None:
    losses.refuse_failed(ASYNC, tmp_path, {0: 0, 1: KILLED, 2: 0}, 40)
    assert losses.lost_in({0: 0, 1: KILLED, 2: 0}, tmp_path) == {1: "was killed by signal 9 (SIGKILL)"}


def test_what_is_sent_keeps_the_digits_of_doubles_and_the_values_of_sparse_gradients() -> None:
    double = [torch.tensor([1 / 3], dtype=torch.float64), torch.ones(2)]
    assert kind_of(double) == torch.float64 and torch.equal(unflatten(flatten(double), double)[0], double[0])
    sparse = torch.tensor([[0.0, 0.0], [1.0, 2.0]]).to_sparse(1)
    assert flatten([sparse, torch.ones(1)]).tolist() == [0.0, 0.0, 1.0, 2.0, 1.0]


def test_random_numbers_of_all_three_kinds_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    import random

    import numpy as np

    def draw() -> list[float]:
        return [float(torch.rand(())), float(np.random.randn()), random.gauss(0.0, 1.0)]

    with randomness.seeded(3):
        draw()
        path = tmp_path / "state.safetensors"
        checkpoint.save(path, {"random": randomness.state()}, {})
        expected = draw()
        randomness.load_state(checkpoint.load(path)[0]["random"])
        assert draw() == expected


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_log_on_a_full_disk_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "worker-0.jsonl").symlink_to("/dev/full")
    log = WorkerLog(tmp_path, 0, is_server=False)
    with pytest.raises(StoreError, match=r"worker-0\.jsonl cannot be written: No space left"):
        log.step(0)
    with contextlib.suppress(OSError):
        log._file.close()
