"""Workers as processes: they learn what the simulation learns, and a lost worker ends or does not end it."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

import windtunnel as wt
from windtunnel.errors import BadInput, MeasurementFailed, Unavailable
from windtunnel.exchange.real.engines import OnRay, OnSlurm, engine_for
from windtunnel.exchange.real.gathering import RealOutcome
from windtunnel.exchange.real.launch import OnThisMachine, run_workers, shares
from windtunnel.exchange.real.spec import RealTraining
from windtunnel.exchange.run import ExchangeSettings
from windtunnel.exchange.training import ClusterOptions, train_on_cluster
from windtunnel.machine import here

SMALL = {"hidden": 16}


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "weights.safetensors")


def run(folder: Path, exchange: str, **fields: object) -> RealOutcome:
    spec = RealTraining(network="ffn", settings=SMALL, exchange=exchange, **fields)  # type: ignore[arg-type]
    return run_workers(spec, folder)


def simulated(exchange: str, **options: object) -> dict[str, torch.Tensor]:
    chosen = ClusterOptions(exchange=exchange, workers=2, epochs=1, **options)  # type: ignore[arg-type]
    found = train_on_cluster("ffn", wt.Machine.find("guide-figure-6"), chosen, settings=dict(SMALL))
    return dict(found.model.state_dict())


def assert_same_weights(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    found = weights_in(folder)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("exchange", "shard"), [("sync", False), ("sync", True), ("server", False)])
def test_synchronous_processes_learn_what_the_simulation_learns_and_wait_for_a_slow_one(
    tmp_path: Path, exchange: str, shard: bool
) -> None:
    outcome = run(tmp_path, exchange, workers=2, epochs=1, shard=shard, slow_rank=0, slow_factor=3.0)
    assert_same_weights(tmp_path, simulated(exchange))
    assert outcome.steps == 46 and not outcome.lost and outcome.last is not None
    # Nobody is ahead: the quick worker's steps last about as long as the slow one's, instead of a third.
    slow, quick = (sum(outcome.samples[rank]) for rank in (0, 1))
    assert quick > slow / 2


def test_local_workers_learn_what_the_simulation_learns_whoever_is_slow(tmp_path: Path) -> None:
    outcome = run(tmp_path, "diloco", workers=2, every=4, epochs=1, slow_rank=1, slow_factor=3.0)
    assert_same_weights(tmp_path, simulated("diloco", settings=ExchangeSettings(every=4)))
    assert "exchange diloco" in str(outcome)
    # Five whole periods of four steps after the first one, and no other.
    assert len(outcome.samples[0]) == 5


class Killer:
    """Kills one worker when it has made some steps. Trainings are so long that it never comes too late."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank

    def __call__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        threading.Thread(target=self._wait, args=(processes[self.rank],), daemon=True).start()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        log = self.folder / f"worker-{self.rank}.jsonl"
        while process.poll() is None:
            if log.is_file() and log.read_text().count("\n") >= 10:
                os.kill(process.pid, signal.SIGKILL)
                return
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("cores", "workers", "expected"),
    [
        ([[0], [1], [2], [3]], 2, [{0, 1}, {2, 3}]),
        ([[0], [1], [2]], 2, [{0}, {1, 2}]),
        ([[0, 2], [1, 3]], 2, [{0, 2}, {1, 3}]),  # both threads of a core belong to one worker
        ([[0], [1]], 4, [{0}, {1}, {0}, {1}]),
    ],
)
def test_workers_share_cores_evenly_and_none_is_left_over(
    cores: list[list[int]], workers: int, expected: list[set[int]]
) -> None:
    assert shares(cores, workers) == expected


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processes cannot be bound to cores here")
def test_each_worker_gets_cores_of_its_own_and_the_server_all(tmp_path: Path) -> None:
    seen: list[set[int]] = []
    spec = RealTraining(network="ffn", settings=SMALL, workers=2, exchange="server", epochs=1)
    engine = OnThisMachine(started=lambda found: seen.extend(os.sched_getaffinity(p.pid) for p in found))
    run_workers(spec, tmp_path, engine)
    assert seen == [*shares(here.processors_by_core(), 2), os.sched_getaffinity(0)]


@pytest.mark.parametrize(("exchange", "victim"), [("sync", 0), ("server", 1), ("local", 0)])
def test_synchronous_forms_end_with_the_reason_and_the_weights_if_a_worker_is_killed(
    tmp_path: Path, exchange: str, victim: int
) -> None:
    """Also if the first worker is the one, which would have told the result."""
    spec = RealTraining(network="ffn", settings=SMALL, workers=2, exchange=exchange, every=3, epochs=300)
    said = rf"Worker {victim} of 2 was killed by signal 9 \(SIGKILL\)"
    with pytest.raises(MeasurementFailed, match=said) as failed:
        run_workers(spec, tmp_path, OnThisMachine(started=Killer(tmp_path, victim)))
    assert "weights.safetensors" in str(failed.value) and "--exchange async" in str(failed.value)
    kept, first = weights_in(tmp_path), simulated("sync")
    assert all(torch.isfinite(kept[name]).all() and kept[name].shape == first[name].shape for name in first)


def test_mixed_training_goes_on_without_the_group_of_a_killed_worker(tmp_path: Path) -> None:
    spec = RealTraining(network="ffn", settings=SMALL, workers=4, groups=2, exchange="mixed", epochs=60)
    outcome = run_workers(spec, tmp_path, OnThisMachine(started=Killer(tmp_path, 1)))
    assert list(outcome.lost) == [1] and outcome.staleness > 0
    assert len(outcome.samples[2]) > len(outcome.samples[0])
    assert outcome.last is not None and outcome.last > 0.5


def test_an_asynchronous_training_goes_on_without_a_killed_worker(tmp_path: Path) -> None:
    spec = RealTraining(
        network="ffn", settings=SMALL, workers=2, exchange="async", epochs=40, slow_rank=0, slow_factor=3.0
    )
    outcome = run_workers(spec, tmp_path, OnThisMachine(started=Killer(tmp_path, 1)))
    assert "killed by signal 9" in outcome.lost[1]
    # The other worker, though slow, made its own steps to the end.
    assert len(outcome.samples[0]) > len(outcome.samples[1])
    assert outcome.rows[-1]["figures"]["accuracy"] > 0.5


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"exchange": "async", "workers": 1}, "nobody to exchange with"),
        ({"workers": 0}, "--workers 0: there is nobody to train"),
        ({"workers": -1}, "--workers -1: there is nobody to train"),
        ({"exchange": "mixed", "workers": 4, "groups": 3}, "cannot be divided into 3"),
        ({"exchange": "local", "workers": 2, "every": 0}, "at least 1"),
        ({"exchange": "async", "workers": 2, "shard": True}, "only among synchronous"),
        ({"exchange": "async", "workers": 2, "staleness": -1}, "staleness must be at least 0"),
    ],
)
def test_what_cannot_be_run_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        RealTraining(network="ffn", **fields)  # type: ignore[arg-type]


def test_too_many_processes_are_refused_before_any_starts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="1 to 64"):
        run(tmp_path, "sync", workers=1000)
    assert not list(tmp_path.iterdir())


# Clusters


def test_engines_are_found_by_name_as_for_studies() -> None:
    assert isinstance(engine_for("local"), OnThisMachine)
    assert engine_for("ray://head:10001") == OnRay(address="ray://head:10001")
    assert engine_for("ray") == OnRay(address="auto")
    slurm = OnSlurm(nodes=2, parameters={"slurm_partition": "gpu", "slurm_gres": "gpu:1"})
    assert engine_for("slurm:nodes=2,partition=gpu,gres=gpu:1") == slurm


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rai", "Did you mean 'ray'"),
        ("slurm:nodes", "'nodes' is not a setting"),
        ("slurm:nodes=0", "above 0"),
    ],
)
def test_engines_that_do_not_exist_are_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        engine_for(text)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed (extra cluster)")
def test_a_ray_cluster_runs_the_same_workers(tmp_path: Path) -> None:
    import ray

    # A cluster of its own: by default Ray joins one that another test has started at the same time. And no
    # worker is killed because other programs hold the machine's memory.
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        _system_config={"memory_monitor_refresh_ms": 0},
    )
    try:
        spec = RealTraining(network="ffn", settings=SMALL, workers=2, epochs=1)
        outcome = run_workers(spec, tmp_path, OnRay())
        assert outcome.steps == 46 and not outcome.lost
        assert_same_weights(tmp_path, simulated("sync"))
        crowded = RealTraining(network="ffn", workers=3)
        with pytest.raises(Unavailable, match="no room for 3 processes: 2 processors are free"):
            run_workers(crowded, tmp_path, OnRay(wait_seconds=2.0))
    finally:
        ray.shutdown()


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
def test_a_job_of_slurm_runs_the_same_workers(tmp_path: Path) -> None:
    """By submitit's executor for one machine."""
    spec = RealTraining(network="ffn", settings=SMALL, workers=2, exchange="server", epochs=1)
    outcome = run_workers(spec, tmp_path, OnSlurm(cluster="local", poll_seconds=0.1))
    assert outcome.steps == 46 and not outcome.lost
    assert_same_weights(tmp_path, simulated("server"))


def test_a_server_has_the_buffers_that_only_workers_compute(tmp_path: Path) -> None:
    """Normalisations are tested with running means, which the server itself never computes."""
    spec = RealTraining(
        network="dcn", settings={"widths": [4, 8, 16]}, workers=2, exchange="server", epochs=2
    )
    run_workers(spec, tmp_path)
    means = [values for name, values in weights_in(tmp_path).items() if name.endswith("running_mean")]
    assert means and all(values.abs().max() > 0 for values in means)
