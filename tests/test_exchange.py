"""Forms of exchange in simulated time: physics, cases worked by hand, one contract for all forms."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import windtunnel as wt
from windtunnel.errors import BadInput, UnknownName
from windtunnel.exchange import forms, host
from windtunnel.exchange.comparison import ExchangeTable, compare_forms, differences_of
from windtunnel.exchange.costs import WorkerForecasts
from windtunnel.exchange.host import WorkerStep, shared_host_costs
from windtunnel.exchange.run import ExchangeCosts, ExchangeSettings
from windtunnel.exchange.samples import read_samples
from windtunnel.exchange.variation import Variation, compute_times
from windtunnel.forecast import gloo

COSTS = ExchangeCosts(
    compute_seconds=1.0,
    exposed_seconds=0.1,
    reduce_seconds=0.4,
    group_seconds=0.05,
    serve_seconds=0.01,
    path_seconds=0.001,
    sent_bytes=1e6,
)
FREE = ExchangeCosts(compute_seconds=1.0)
IN_TWO = ExchangeSettings(groups=2, every=4)
ALL = list(forms.FORMS.values())


def draw(workers: int = 8, steps: int = 40, **variation: float) -> np.ndarray:
    return Variation(**variation).draw(1.0, workers, steps, seed=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", ALL, ids=lambda form: form.name)
class TestEveryForm:
    def test_all_steps_are_made_and_changes_are_in_the_order_of_time(self, form: forms.Form) -> None:
        compute = draw(jitter=0.3)
        run = form.simulate(compute, COSTS, IN_TWO)
        assert run.steps == compute.size and len(run.waits) == len(compute)
        assert np.all(np.diff(run.ends) >= 0)
        assert len(run.ends) == len(run.staleness) == len(run.workers)
        assert np.all(run.staleness >= 0) and np.all(run.waits >= -1e-9)

    def test_no_run_is_faster_than_its_busiest_worker(self, form: forms.Form) -> None:
        compute = draw(jitter=0.3, slow_workers=1, slow_factor=2.0)
        assert form.simulate(compute, COSTS, IN_TWO).seconds >= compute.sum(axis=1).max()

    def test_equal_workers_without_costs_take_the_time_of_one(self, form: forms.Form) -> None:
        run = form.simulate(draw(), FREE, IN_TWO)
        assert run.seconds == pytest.approx(40.0) and run.step_seconds == pytest.approx(1.0)
        assert run.waits == pytest.approx(np.zeros(8))

    def test_slower_steps_or_a_slower_server_never_make_it_faster(self, form: forms.Form) -> None:
        compute = draw(jitter=0.3)
        base = form.simulate(compute, COSTS, IN_TWO).seconds
        assert form.simulate(compute * 1.5, COSTS, IN_TWO).seconds >= base
        seconds = [each.name for each in dataclasses.fields(COSTS) if each.type == "float"]
        slower = dataclasses.replace(COSTS, **{name: 2 * getattr(COSTS, name) for name in seconds})
        assert form.simulate(compute, slower, IN_TWO).seconds >= base


def test_synchronous_time_follows_the_slowest_worker_and_asynchronous_the_mean() -> None:
    compute = np.array([[1.0] * 12, [2.0] * 12])
    assert forms.named("sync").simulate(compute, FREE, ExchangeSettings()).seconds == 24.0
    run = forms.named("async").simulate(compute, FREE, ExchangeSettings())
    # In the first 12 s the quick worker makes 12 changes and the slow one 6.
    assert np.count_nonzero(run.ends <= 12.0) == 18


def test_a_slow_worker_does_not_slow_the_others_of_an_asynchronous_run() -> None:
    """Steps of 1 and 3 s: 1 + 1/3 steps a second, although the slow one is still at work when all others end.

    In two groups of two, one of which has the slow worker: 2 steps a second and 2 in 3 s.
    """
    compute = np.array([[1.0] * 30, [3.0] * 30])
    run = forms.named("async").simulate(compute, FREE, ExchangeSettings())
    assert run.common_seconds == 30.0 and run.seconds == 90.0
    assert run.rate == pytest.approx(1 + 1 / 3) and run.wait_share == 0.0
    in_groups = np.array([[1.0] * 30, [1.0] * 30, [1.0] * 30, [3.0] * 30])
    run = forms.named("mixed").simulate(in_groups, FREE, IN_TWO)
    assert run.rate == pytest.approx(2 + 2 / 3)
    # The quick worker of the slow group waits 60 of its 90 s; the others never.
    assert run.wait_share == pytest.approx(60 / (30 + 30 + 90 + 90))
    run = forms.named("sync").simulate(in_groups, FREE, ExchangeSettings())
    assert run.rate == pytest.approx(4 / 3) and run.wait_share == pytest.approx(60 * 3 / 360)


def test_local_steps_average_jitter_out() -> None:
    """Two workers with steps of 1 and 2 s in turn: every step waits for 2 s, every second step for 3 s."""
    compute = np.array([[1.0, 2.0] * 4, [2.0, 1.0] * 4])
    assert forms.named("sync").simulate(compute, FREE, ExchangeSettings()).seconds == 16.0
    run = forms.named("local").simulate(compute, FREE, ExchangeSettings(every=2))
    assert run.seconds == 12.0 and len(run.ends) == 4


def test_a_server_that_is_busy_bounds_the_asynchronous_rate() -> None:
    costs = ExchangeCosts(compute_seconds=1.0, serve_seconds=0.25, sent_bytes=100.0)
    run = forms.named("async").simulate(draw(workers=16), costs, ExchangeSettings())
    # 640 exchanges of 0.25 s: the server is never idle after the first second.
    assert run.seconds == pytest.approx(1.0 + 640 * 0.25)
    assert run.served_bytes == 640 * 200.0


def test_a_synchronous_server_receives_all_then_sends_to_all() -> None:
    """Ready at 1 and 3 s, 1 s each: received from 1 to 2 and from 3 to 4 s; sent until 6 s."""
    costs = ExchangeCosts(compute_seconds=1.0, serve_seconds=1.0, path_seconds=0.5)
    run = forms.named("server").simulate(np.array([[1.0], [3.0]]), costs, ExchangeSettings())
    assert run.seconds == 4.0 + 2.0 + 2 * 0.5
    # Ready at the same time, they are received one after the other.
    run = forms.named("server").simulate(np.array([[1.0], [1.0]]), costs, ExchangeSettings())
    assert run.seconds == 3.0 + 2.0 + 2 * 0.5


def test_equal_asynchronous_workers_are_stale_by_all_the_others() -> None:
    run = forms.named("async").simulate(draw(workers=8), FREE, ExchangeSettings())
    assert set(run.staleness[8:].tolist()) == {7}
    mixed = forms.named("mixed").simulate(draw(workers=8), FREE, IN_TWO)
    assert set(mixed.staleness[2:].tolist()) == {1}


def test_bounded_staleness_holds_quick_workers_back() -> None:
    compute = np.array([[1.0] * 30, [3.0] * 30])
    free = forms.named("async").simulate(compute, FREE, ExchangeSettings())
    for bound in (0, 1, 4):
        run = forms.named("async").simulate(compute, FREE, ExchangeSettings(staleness=bound))
        done = {0: 0, 1: 0}
        for worker in run.workers.tolist():
            done[worker] += 1
            # The quick worker has begun at most `bound` steps more than the slow one has ended.
            assert done[0] - done[1] <= bound + 1
        assert run.seconds == free.seconds == 90.0  # the slow worker sets the end of both
        assert run.waits[0] > free.waits[0]


def test_groups_that_do_not_divide_the_workers_are_refused() -> None:
    with pytest.raises(BadInput, match="8 workers cannot be divided into 3 equal groups"):
        forms.named("mixed").simulate(draw(), COSTS, ExchangeSettings(groups=3))


@pytest.mark.parametrize("wrong", [{"every": 0}, {"groups": 0}, {"staleness": -1}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        ExchangeSettings(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"jitter": -0.1}, {"jitter": float("nan")}, {"pause_share": 2.0}, {"slow_factor": 0.5}]
)
def test_variations_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Variation(**wrong)  # type: ignore[arg-type]


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(UnknownName, match="asinc"):
        forms.named("asinc")


@pytest.mark.parametrize("form", ["async", "mixed"])
def test_a_slow_worker_takes_only_its_own_share_from_an_asynchronous_cluster(form: str) -> None:
    """Eight workers, one of half the speed: together 7.5 steps a second; a group waits for its slowest."""
    run = forms.named(form).simulate(draw(slow_workers=1, slow_factor=2.0), FREE, IN_TWO)
    assert run.rate == pytest.approx(7.5 if form == "async" else 4 / 2 + 4, rel=0.05)
    sync = forms.named("sync").simulate(draw(slow_workers=1, slow_factor=2.0), FREE, IN_TWO)
    assert sync.rate == pytest.approx(4.0)


def test_differences_cost_synchronous_workers_the_slowest_and_asynchronous_ones_nothing() -> None:
    few, many = (differences_of(Variation(jitter=0.2).draw(1.0, n, 100, seed=0), 10) for n in (4, 64))
    assert 1 < few.slowest < many.slowest and 1 < few.period < few.slowest and many.period < many.slowest
    assert few.mean == pytest.approx(1.0, abs=0.01) and many.mean == pytest.approx(1.0, abs=0.01)
    # Two workers of 1 and 2 s: all wait for 2 of 1.5 s; by themselves they make 1.5 steps in a second.
    two = differences_of(np.array([[1.0] * 20, [2.0] * 20]), 5)
    assert (two.slowest, two.period) == (pytest.approx(4 / 3), pytest.approx(4 / 3))
    assert two.mean == pytest.approx(2 / 1.5 / 1.5)


class TestSharedHost:
    CPU = wt.Machine.find("xeon-platinum-8480")
    TWO = dataclasses.replace(CPU, device=dataclasses.replace(CPU.device, cores=2))
    STEP = WorkerStep(cpu_seconds=0.01, tensors=10, gradient_bytes=1e5)

    def costs(self, workers: int, group: int = 1, load: float = 0.0, **step: float) -> ExchangeCosts:
        return shared_host_costs(dataclasses.replace(self.STEP, **step), workers, group, self.TWO, load)

    def seconds(self, form: str, workers: int, costs: ExchangeCosts) -> float:
        compute = compute_times(costs, Variation(), workers, 20, seed=0)
        return forms.named(form).simulate(compute, costs, ExchangeSettings()).step_seconds

    def test_more_processes_than_cores_share_them(self) -> None:
        """Of three workers on two cores, the first and the third share one, and refill its caches."""
        assert self.costs(1).shares == (1.0,)
        beside = 1 + host.BESIDE
        assert self.costs(2).shares == (beside, beside)
        shared = 2 * beside * (1 + host.TURN)
        assert self.costs(3).shares == pytest.approx((shared, beside, shared))
        # Of 56 cores one other is busy: a 55th of what all others would cost.
        assert shared_host_costs(self.STEP, 2, 1, self.CPU).shares[0] == pytest.approx(1 + host.BESIDE / 55)

    def test_synchronous_workers_wait_for_the_core_with_most_of_them(self) -> None:
        three, four = self.costs(3), self.costs(4)
        assert self.seconds("sync", 3, three) == pytest.approx(self.seconds("sync", 4, four), rel=0.1)
        assert self.seconds("async", 3, three) < 0.8 * self.seconds("async", 4, four)

    def test_other_programs_slow_one_worker_as_they_slowed_the_measured_one(self) -> None:
        """Six processes share two cores: one takes three times as long; with a second worker seven share."""
        assert self.costs(1, load=5).shares == (3.0,)
        assert self.costs(2, load=5).shares[0] == pytest.approx(3.5 * (1 + host.BESIDE))

    def test_one_worker_has_nobody_to_talk_to(self) -> None:
        assert self.costs(1).exposed_seconds == 0.0

    @pytest.mark.parametrize("more", [{"gradient_bytes": 1e7}, {"tensors": 200}, {"buffers": 9}])
    def test_more_bytes_tensors_or_buffers_take_longer(self, more: dict[str, float]) -> None:
        less, costs = self.costs(2), self.costs(2, **more)
        assert costs.exposed_seconds > less.exposed_seconds
        assert costs.serve_seconds > less.serve_seconds and costs.path_seconds > less.path_seconds

    def test_a_wrapped_step_is_its_work_and_that_of_its_messages(self) -> None:
        """Four workers on two cores: six messages that follow each other, 1.5 times the bytes, on each core
        twice. With buffers, two broadcasts of two messages."""
        ring = 6 * gloo.STEP_SECONDS + 1.5 * 1e5 / gloo.LOOPBACK_RATE
        wrapper = host.WRAPPER.fixed + 10 * host.WRAPPER.tensor
        assert self.costs(4).exposed_seconds == pytest.approx(2 * (ring + wrapper))
        kept = 2 * (ring + wrapper + 4 * gloo.STEP_SECONDS)
        assert self.costs(4, buffers=3).exposed_seconds == pytest.approx(kept)

    def test_a_synchronous_server_changes_the_weights_once_for_all_workers(self) -> None:
        costs = self.costs(2)
        change, messages = costs.update_seconds, 2 * (costs.message_seconds or 0.0)
        assert costs.serve_seconds == pytest.approx(change + messages)
        step = max(costs.shares) * 0.01 + 2 * messages + change + 2 * costs.path_seconds
        assert self.seconds("server", 2, costs) == pytest.approx(step)

    def test_the_step_of_a_worker_says_what_is_exchanged(self) -> None:
        layers = torch.nn.Linear, torch.nn.BatchNorm1d, torch.nn.Linear
        sizes = (4, 8), (8,), (8, 1)
        job = wt.Workload(
            name="normalised",
            model=lambda: torch.nn.Sequential(
                *(make(*size) for make, size in zip(layers, sizes, strict=True))
            ),
            batch=lambda n: torch.ones(n, 4),
            loss=lambda model, batch: model(batch).square().mean(),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            default_batch=2,
        )
        model = job.model()
        step = WorkerForecasts.of(job, self.CPU).worker_step(0.01)
        assert (step.tensors, step.buffers) == (6, 3)
        assert step.gradient_bytes == sum(4 * p.numel() for p in model.parameters())

    def test_a_cpu_is_simulated_with_processes_of_its_host(self) -> None:
        forecasts = WorkerForecasts.of(wt.Workload.named("ffn"), self.CPU)
        found = compare_forms(forecasts, (1, 2, 4), variation=Variation(jitter=0.1))
        assert found.row("sync", 4).speedup > found.row("sync", 2).speedup * 0.9
        assert found.row("mixed", 4).staleness > 0


class TestVariation:
    def test_a_spread_makes_workers_differ_and_stay_so(self) -> None:
        times = Variation(spread=0.2).draw(2.0, 5000, 3, seed=0)
        assert np.array_equal(times[:, 0], times[:, 2])
        assert times.mean() == pytest.approx(2.0, rel=0.02) and times[:, 0].std() == pytest.approx(
            0.4, rel=0.1
        )

    def test_jitter_has_the_mean_and_deviation_asked_for(self) -> None:
        times = Variation(jitter=0.25).draw(2.0, 1000, 200, seed=0)
        assert times.mean() == pytest.approx(2.0, rel=0.01)
        assert times.std() == pytest.approx(0.5, rel=0.02)

    def test_measured_samples_keep_their_shape_around_the_forecast(self) -> None:
        times = Variation(samples=(1.0, 1.0, 4.0)).draw(10.0, 100, 300, seed=0)
        assert set(np.unique(times)) == {5.0, 20.0} and times.mean() == pytest.approx(10.0, rel=0.02)

    def test_failures_come_at_their_rate_and_cost_the_restart(self) -> None:
        times = Variation(failure_rate=0.01, restart_seconds=100.0).draw(1.0, 100, 1000, seed=0)
        failed = times > 50.0
        assert failed.mean() == pytest.approx(1 - np.exp(-0.01), rel=0.1)
        assert np.all(times[failed] == 101.0)

    def test_measured_times_are_read_from_numbers_or_from_the_log_of_a_worker(self, tmp_path: Path) -> None:
        numbers, log = tmp_path / "steps.txt", tmp_path / "worker-0.jsonl"
        numbers.write_text("0.01\n\n0.03\n")
        assert read_samples(numbers) == (0.01, 0.03)
        log.write_text('{"step": 0, "busy": 0.02, "seconds": 5.0}\n{"end": "done", "seconds": 6.0}\n')
        assert read_samples(log) == (0.02,)

    @pytest.mark.parametrize(
        "text", ["", "0.1\nfast\n", "[1, 2]", "true", '{"busy": "x"}', '"busy"', "-1", "NaN"]
    )
    def test_samples_that_are_no_times_are_refused(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "steps.txt"
        path.write_text(text)
        with pytest.raises(BadInput, match="samples"):
            Variation(samples=read_samples(path))

    def test_a_seed_gives_the_same_times(self) -> None:
        one, two = (Variation(jitter=0.2, pause_share=0.1, pause_factor=3.0).draw(1.0, 4, 9, 7) for _ in "ab")
        assert np.array_equal(one, two)


@pytest.fixture(scope="module")
def table() -> ExchangeTable:
    machine = wt.Machine.find("guide-figure-6")
    forecasts = WorkerForecasts.of(wt.Workload.named("ffn", inputs=256, hidden=512), machine)
    return compare_forms(forecasts, (1, 4, 16), variation=Variation(jitter=0.2))


class TestTable:
    def test_it_knows_how_long_each_worker_waits_and_how_stale_each_change_is(self) -> None:
        machine = wt.Machine.find("guide-figure-6")
        forecasts = WorkerForecasts.of(wt.Workload.named("ffn"), machine)
        slow = Variation(slow_workers=1, slow_factor=2.0)
        found = compare_forms(forecasts, (4,), names=("sync", "async"), variation=slow)
        waits = found.row("sync", 4).wait_shares
        assert len(waits) == 4 and waits[0] < 0.1 and min(waits[1:]) > 0.4
        counts = found.row("async", 4).staleness_counts
        assert sum(counts) == 400
        mean = sum(stale * count for stale, count in enumerate(counts)) / 400
        assert mean == pytest.approx(found.row("async", 4).staleness)
        assert f"-{round(100 * max(waits))}%)" in str(found)

    def test_a_synchronous_worker_alone_takes_its_forecast(self, table: ExchangeTable) -> None:
        machine = wt.Machine.find("gtx1080")
        alone = wt.predict(wt.Workload.named("ffn", inputs=256, hidden=512), machine)
        # The mean of 100 steps with a deviation of 20 % is within 3 deviations of the mean.
        assert table.row("sync", 1).step_seconds == pytest.approx(alone.step_seconds, rel=0.06)
        assert table.row("sync", 1).wait_share == 0.0

    def test_the_table_fits_a_terminal_of_80_columns(self, table: ExchangeTable) -> None:
        lines = table.lines()
        rows = lines[2 : lines.index("", 2)]
        assert len(rows) == len(table.rows) + 1 and max(map(len, rows)) <= 80

    def test_more_workers_never_handle_fewer_examples(self, table: ExchangeTable) -> None:
        for form in ("sync", "local", "async", "mixed"):
            rates = [table.row(form, count).examples_per_second for count in (1, 4, 16)]
            assert rates == sorted(rates)

    def test_it_prints_a_row_for_each_form_and_says_what_speed_does_not_tell(
        self, table: ExchangeTable
    ) -> None:
        text = str(table)
        assert text.count("\n       16 ") == len(forms.FORMS) and "not progress" in text
        assert "mixed  pays up to" in text and all(len(line) <= 110 for line in text.splitlines())

    def test_more_workers_than_devices_are_refused(self) -> None:
        forecasts = WorkerForecasts.of(wt.Workload.named("ffn"), wt.Machine.find("guide-figure-6"))
        with pytest.raises(BadInput, match="17 workers: the machine has 16 devices"):
            compare_forms(forecasts, (17,))
