"""Workers as processes: they learn what the simulation learns, and a lost worker ends or does not end it."""

from __future__ import annotations

import dataclasses
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
from windtunnel.errors import BadInput, MeasurementFailed, Note, Unavailable
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


def simulated(exchange: str, epochs: int = 1, **options: object) -> dict[str, torch.Tensor]:
    chosen = ClusterOptions(exchange=exchange, workers=2, epochs=epochs, **options)  # type: ignore[arg-type]
    found = train_on_cluster("ffn", wt.Machine.find("guide-figure-6"), chosen, settings=dict(SMALL))
    return dict(found.model.state_dict())


def assert_same_weights(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    found = weights_in(folder)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-4, atol=1e-5)


class Killer:
    """Kills a process when it has made some steps. Trainings are so long that it never comes too late."""

    def __init__(self, folder: Path, rank: int, steps: int = 10, log: str = "") -> None:
        self.log, self.rank, self.steps = folder / (log or f"worker-{rank}.jsonl"), rank, steps

    def __call__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        threading.Thread(target=self._wait, args=(processes[self.rank],), daemon=True).start()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            if self.log.is_file() and self.log.read_text().count("\n") >= self.steps:
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


@pytest.mark.parametrize(
    ("exchange", "shard", "victim"),
    [("sync", False, 0), ("sync", True, 1), ("server", False, 1), ("diloco", False, 0)],
)
def test_a_synchronous_training_goes_on_after_a_killed_worker_to_what_the_simulation_learns(
    tmp_path: Path, exchange: str, shard: bool, victim: int
) -> None:
    """Also if the first worker is the one, which would have told the result. Three passes are 69 steps of a
    worker, and of diloco 72; the first checkpoint comes after 23 or 24."""
    spec = RealTraining(
        network="ffn", settings=SMALL, workers=2, exchange=exchange, shard=shard, every=4, epochs=3, keep=True
    )
    slowed = dataclasses.replace(spec, slow_rank=1 - victim, slow_factor=30.0)
    with pytest.raises(MeasurementFailed, match=r"was killed by signal 9 \(SIGKILL\)") as failed:
        run_workers(slowed, tmp_path, OnThisMachine(started=Killer(tmp_path, victim, steps=30)))
    said, expected = str(failed.value), simulated(exchange, epochs=3, settings=ExchangeSettings(every=4))
    assert f"Worker {victim} of 2" in said and "weights.safetensors" in said and "--exchange async" in said
    kept = weights_in(tmp_path)
    assert all(torch.isfinite(kept[name]).all() for name in expected)
    with pytest.warns(Note, match="Continues after"):
        outcome = run_workers(dataclasses.replace(spec, slow_rank=0, slow_factor=3.0), tmp_path)
    assert f"continues after {outcome.spec.start} of" in said and outcome.spec.start > 0
    assert_same_weights(tmp_path, expected)
    assert outcome.steps == (144 if exchange == "diloco" else 138) and not outcome.lost
    # The curve has its rows from before the loss: after the first change and after each pass.
    assert len(outcome.rows) == 4 and "continued   after" in str(outcome)
    # Nobody is ahead: the quick worker's steps last about as long as the slow one's, instead of a third.
    slow, quick = (sum(outcome.samples[rank]) for rank in (0, 1))
    assert quick > slow / 2


def test_without_its_server_an_asynchronous_training_ends_and_goes_on_later(tmp_path: Path) -> None:
    spec = RealTraining(network="ffn", settings=SMALL, workers=2, exchange="async", epochs=3, keep=True)
    slowed = dataclasses.replace(spec, slow_rank=0, slow_factor=30.0)
    killer = Killer(tmp_path, 2, steps=50, log="server.jsonl")
    with pytest.raises(MeasurementFailed, match="The parameter server was killed") as failed:
        run_workers(slowed, tmp_path, OnThisMachine(started=killer))
    assert "continues after 46 of 138 changes" in str(failed.value)
    with pytest.warns(Note, match="Continues after 46"):
        outcome = run_workers(spec, tmp_path)
    assert outcome.steps == 138 and len(outcome.rows) == 4
    assert outcome.last is not None and outcome.last > outcome.rows[0]["figures"]["accuracy"]


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
        spec = RealTraining(network="ffn", settings=SMALL, workers=2, epochs=1, keep=True)
        outcome = run_workers(spec, tmp_path, OnRay())
        assert outcome.steps == 46 and not outcome.lost
        # Checkpoints come back, and go out again to where the training goes on.
        with pytest.warns(Note, match="Continues after 23 of 23"):
            outcome = run_workers(dataclasses.replace(spec, epochs=2), tmp_path, OnRay())
        assert outcome.spec.start == 23 and outcome.steps == 92
        assert_same_weights(tmp_path, simulated("sync", epochs=2))
        crowded = RealTraining(network="ffn", workers=3)
        with pytest.raises(Unavailable, match="no room for 3 processes: 2 processors are free"):
            run_workers(crowded, tmp_path, OnRay(wait_seconds=2.0))
    finally:
        ray.shutdown()


SBATCH = """#!/bin/sh
# Starts the script as Slurm would, with as many tasks as it asks for.
nodes=$(sed -n 's/#SBATCH --nodes=//p' "$1"); tasks=$(sed -n 's/#SBATCH --ntasks-per-node=//p' "$1")
export SLURM_JOB_ID=42 SLURM_JOB_NUM_NODES=$nodes SLURM_TASKS_PER_NODE=$tasks SLURM_NTASKS=$((nodes * tasks))
bash "$1" > /dev/null 2>&1 &
echo Submitted batch job 42
"""
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do [ "$1" = --unbuffered ] || shift; shift; done
for rank in $(seq 0 $((SLURM_NTASKS - 1))); do
    export SLURM_PROCID=$rank SLURM_LOCALID=$((rank % SLURM_TASKS_PER_NODE)) SLURM_NODEID=0
    "$@" &
done
wait
"""


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")
def test_a_job_of_slurm_runs_the_same_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an sbatch that starts the tasks of the job here: two nodes of two tasks for three processes."""
    programs = {"sbatch": SBATCH, "srun": SRUN, "sacct": "#!/bin/sh\n", "scancel": "#!/bin/sh\n"}
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spec = RealTraining(network="ffn", settings=SMALL, workers=2, exchange="server", epochs=1)
    engine = engine_for("slurm:nodes=2,partition=gpu,poll_seconds=0.1")
    outcome = run_workers(spec, tmp_path / "run", engine)
    assert outcome.steps == 46 and not outcome.lost
    assert_same_weights(tmp_path / "run", simulated("server"))
    script = next((tmp_path / "run" / "slurm").glob("*submission.sh")).read_text()
    assert "--partition=gpu" in script and "--nodes=2" in script and "--ntasks-per-node=2" in script


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="processes cannot be bound to cores here")
def test_a_server_has_the_buffers_that_only_workers_compute_and_all_cores(tmp_path: Path) -> None:
    """Normalisations are tested with running means, which the server itself never computes. Each worker has
    cores of its own."""
    seen: list[set[int]] = []
    spec = RealTraining(
        network="dcn", settings={"widths": [4, 8, 16]}, workers=2, exchange="server", epochs=2
    )
    engine = OnThisMachine(started=lambda found: seen.extend(os.sched_getaffinity(p.pid) for p in found))
    run_workers(spec, tmp_path, engine)
    assert seen == [*shares(here.processors_by_core(), 2), os.sched_getaffinity(0)]
    means = [values for name, values in weights_in(tmp_path).items() if name.endswith("running_mean")]
    assert means and all(values.abs().max() > 0 for values in means)
