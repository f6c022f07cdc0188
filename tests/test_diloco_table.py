"""The table of measured local runs: read as stated, forecast by the exchange alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.accuracy import diloco, published

HEAD = (
    "algorithm,H,bandwidth_shaped,workers,n_params,steps_counted,n_outer_steps,median_compute_ms,"
    "compute_fraction"
)


def write(folder: Path, *rows: str) -> Path:
    (folder / diloco.FILE).write_text("\n".join(["# a source", HEAD, *rows]) + "\n")
    return folder


def test_an_average_takes_the_bytes_of_a_ring_at_the_rate_of_the_network(tmp_path: Path) -> None:
    # 25 million weights are 100 MB; each of 4 nodes sends 2 x 3/4 of them: 150 MB at 125 MB/s are 1.2 s, a
    # little more over TCP. Ten steps of 0.1 s then are about 1 of 2.2 to 2.35 s if all nodes are alike.
    folder = write(tmp_path, "diloco,10,1g,4,25000000,100,10,100,0.44")
    (run,) = diloco.read(published.read_rows(folder, diloco.FILE))
    assert 1 / 2.35 < diloco.utilisation(run, spread=0.0) < 1 / 2.2
    validation = diloco.validate(folder)
    assert not validation.failures and "met: worst error within 5 points" in validation.text()


def test_nodes_that_differ_drift_apart_over_many_steps(tmp_path: Path) -> None:
    """The slowest of 4 normal values is 1.03 deviations above their mean: with 15 % of 0.1 s and H = 100, all
    wait 1.5 s for it, a little more since the distribution is skewed."""
    folder = write(
        tmp_path, "diloco,100,1g,4,25000000,100,1,100,0.8", "diloco,1,1g,4,25000000,100,100,100,0.07"
    )
    many, one = diloco.read(published.read_rows(folder, diloco.FILE))
    waits = [
        run.compute_seconds * run.steps * (1 / diloco.utilisation(run) - 1 / diloco.utilisation(run, 0.0))
        for run in (many, one)
    ]
    assert 1.4 < waits[0] < 1.9
    # One wait of 100 steps, or a hundred waits of one step: the same nodes are slow.
    assert waits[1] == pytest.approx(waits[0], rel=0.01)


def test_a_utilisation_that_is_far_off_fails(tmp_path: Path) -> None:
    validation = diloco.validate(write(tmp_path, "localsgd,10,1g,4,25000000,100,10,100,0.9"))
    assert validation.failures and "NOT MET" in str(validation)


def test_runs_without_a_stated_rate_and_those_of_ddp_are_left_out(tmp_path: Path) -> None:
    kept = "diloco,1,50m,4,1000,10,10,5,0.5"
    rows = (kept, "diloco,1,unshaped,4,1000,10,10,5,0.5", "ddp,1,50m,4,1000,10,10,5,0.5")
    assert len(diloco.validate(write(tmp_path, *rows)).rows) == 1


@pytest.mark.parametrize("every", [1, 8, 64])
def test_rarer_averages_leave_more_time_to_compute(tmp_path: Path, every: int) -> None:
    often, rarely = (
        diloco.validate(write(tmp_path, f"diloco,{count},200m,4,1000000,{count * 4},4,20,0.5"))
        .rows[0]
        .predicted
        for count in (every, 2 * every)
    )
    assert often < rarely < 1
