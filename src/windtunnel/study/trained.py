"""A study's rows of trained networks, from the store: one for each point, with all its seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from windtunnel import records
from windtunnel.measurement import summary
from windtunnel.measurement.store import DONE, WAITING, Store, StoredCell
from windtunnel.records import Plain
from windtunnel.study.rows import StudyRow, TrainedSeeds
from windtunnel.study.run.train_cells import LABEL, TrainPoint, points_of, seeds_of
from windtunnel.study.study import Study

NOT_REACHED = -1
_LEAST_SHARE = 0.9  # of one processor; a lower share means that other programs used it
_FACTS: tuple[str, ...] = ("cpu", "cpus", "cores", "windtunnel", "versions")
_Machine = tuple[object, object]
_Stored = Mapping[tuple[str, str, str, _Machine], StoredCell]


def trained(study: Study, store: Store) -> list[StudyRow]:
    """The rows of all points that a store has. A training is the same at every level, so levels do not
    matter; cells of another machine are rows of their own."""
    points = points_of(study)
    if not points:
        return []
    stored: dict[tuple[str, str, str, _Machine], StoredCell] = {}
    for figure, case, cell in store.cells(study.name):
        stored[figure, case, cell.text, _machine(cell)] = cell
    quiet = _quiet_seconds(stored.values())
    machines = sorted({key[3] for key in stored}, key=repr)
    rows = []
    for point in points:
        for machine in machines:
            found = _of_point(point, machine, stored)
            if found:
                rows.append(_row(study, point, found, quiet.get(machine)))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seed:
    number: int
    cell: StoredCell

    @property
    def result(self) -> Plain:
        assert self.cell.result is not None
        return dict(self.cell.result["result"])

    @property
    def loop_seconds(self) -> float:
        assert self.cell.result is not None
        return float(self.cell.result["loop_seconds"])

    def is_quiet(self, quiet_seconds: float) -> bool:
        """Whether no other program disturbed it: by the reference loop, and by its share of a processor."""
        assert self.cell.result is not None
        share = float(self.cell.result.get("processor_share", 0.0))
        return share >= _LEAST_SHARE and summary.is_quiet(self.loop_seconds, quiet_seconds)


def _of_point(point: TrainPoint, machine: _Machine, stored: _Stored) -> list[_Seed]:
    found = []
    for seed in range(seeds_of(point, "rigorous")):
        cell = stored.get((point.figure, point.case.name, point.text(seed), machine))
        if cell is not None:
            found.append(_Seed(number=seed, cell=cell))
    return found


def _machine(cell: StoredCell) -> _Machine:
    return cell.environment.get("cpu"), cell.environment.get("cpus")


def _quiet_seconds(cells: Iterable[StoredCell]) -> dict[_Machine, float]:
    """The reference loop on each quiet machine, from all its trainings."""
    loops = defaultdict[_Machine, list[float]](list)
    for cell in cells:
        if cell.state == DONE and cell.result and "loop_seconds" in cell.result:
            loops[_machine(cell)].append(float(cell.result["loop_seconds"]))
    return {machine: summary.quiet_loop(seconds) for machine, seconds in loops.items()}


def _row(study: Study, point: TrainPoint, found: Sequence[_Seed], quiet_seconds: float | None) -> StudyRow:
    done = [seed for seed in found if seed.cell.state == DONE and seed.cell.result]
    facts = found[0].cell.environment
    fields: Plain = {"state": DONE}
    if not done:
        state = next((seed.cell for seed in found if seed.cell.state not in (DONE, WAITING)), found[0].cell)
        fields = {"state": state.state, "error": state.error}
    environment: Plain = {name: facts[name] for name in _FACTS if name in facts}
    if done and quiet_seconds is not None:
        training = _training(point, done, quiet_seconds)
        fields |= {"training": training, "measured_at": max(seed.cell.finished for seed in done)}
        environment |= {"reference_loop_seconds": quiet_seconds}
        environment |= {} if all(training.quiet) else {"disturbed": True}
    if point.cluster:
        fields |= _of_cluster(point)
    return StudyRow(
        study=study.name,
        figure=point.figure,
        case=point.case.name,
        label=LABEL,
        job=point.case.network,
        settings={**point.case.settings, **point.at, **point.cluster},
        device="cpu",
        device_name=str(facts.get("cpu", "")),
        threads=1,
        data=point.case.data or "of the network",
        optimizer="its own",
        environment=environment,
        **fields,
    )


def _of_cluster(point: TrainPoint) -> Plain:
    """The losses are real, but the clock is simulated for a machine that is not here, so such a row is a
    forecast."""
    cluster = point.cluster
    return {
        "machine": str(cluster["machine"]),
        "devices": int(str(cluster["workers"])),
        "strategy": {"exchange": cluster["exchange"]},
        "origin": "forecast",
        "source": "real gradients under a simulated clock",
    }


def _short(value: float | bool | None) -> float | bool:
    """Five digits, which keeps files of rows small; the store has all."""
    if value is None:
        return NOT_REACHED
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _training(point: TrainPoint, done: Sequence[_Seed], quiet_seconds: float) -> TrainedSeeds:
    from windtunnel.learning.trial import TrialOutcome

    case = point.case
    results = [records.read(TrialOutcome, seed.result, "stored training") for seed in done]

    def each(name: str) -> tuple[object, ...]:
        return tuple(_short(getattr(one, name)) for one in results)

    fields: Plain = {
        "target_steps": each("steps_to_target"),
        "target_examples": each("examples_to_target"),
        "target_seconds": each("seconds_to_target"),
        "losses": each("loss"),
        "scores": each("score"),
        "best_scores": each("best"),
        "seconds": each("seconds"),
        "diverged": each("diverged"),
    }
    return TrainedSeeds(
        metric=results[0].metric,
        better=results[0].better,
        baseline=case.baseline,
        baseline_is=case.baseline_is,
        target=case.target,
        budget_steps=case.rounds * case.steps,
        seeds=tuple(seed.number for seed in done),
        # Nothing disturbs a simulated clock.
        quiet=tuple(bool(point.cluster) or seed.is_quiet(quiet_seconds) for seed in done),
        **fields,
    )
