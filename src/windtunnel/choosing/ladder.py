"""The guide's ladder: train a shallow network, then deeper ones while they are worth their time (section
III.A).

The networks, their order and their random numbers follow from the data and the seed. The time limit only
cuts this sequence short, so more time never gives a worse choice.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from windtunnel import records
from windtunnel.choosing import saved
from windtunnel.choosing.hits import hits_of
from windtunnel.choosing.ladder_result import (
    ROUNDING,
    Exam,
    LadderResult,
    RungResult,
    interval_of_share,
    reaches,
)
from windtunnel.choosing.own_data import OwnData
from windtunnel.choosing.rungs import Rung, lesson_for, rungs_for
from windtunnel.errors import BadInput, StoreError
from windtunnel.job.lesson import Lesson
from windtunnel.learning import checkpoint, training
from windtunnel.learning.options import TrainingIdentity, TrainingOptions
from windtunnel.learning.result import EpochRow
from windtunnel.records import Plain

WORTH = 0.05  # share of the errors that a deeper network must remove
PATIENCE = 10  # rounds without a better score or a lower loss after which a rung is complete
MOST_ROUNDS = 100
TRIES = 2  # rungs in a row that do not pay before the ladder ends
RULE = (
    "A deeper network is worth its time if it removes at least 1 in 20 of the errors of the best one so far; "
    "after two in a row that do not, the ladder ends."
)
GUIDE = (
    "Shallow first, deeper while it pays (III.A.2); as many hidden nodes as inputs or more (III.B); small "
    "initial weights (III.A.2); judged on unseen examples (III.A.1)"
)
_NOTES = "ladder.json"
_BEST = "best.safetensors"
Progress = Callable[[Rung, int, float, float], None]  # rung, round, best score so far, seconds so far


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderOptions:
    """`target`: the score at which to stop. `seconds`: of training, over all rungs and runs of the folder."""

    folder: Path
    seconds: float
    target: float | None = None
    seed: int = 0
    device: str = "cpu"
    fresh: bool = False


def default_folder(data: OwnData, seed: int) -> Path:
    """A folder for this data, as `network train` names its own."""
    mark = records.digest(_identity(data, seed))[:8]
    stem = Path(data.name).stem.replace(" ", "-")
    return Path("windtunnel-runs") / f"{stem}-{mark}"


def run_ladder(data: OwnData, options: LadderOptions, progress: Progress | None = None) -> LadderResult:
    """Trains one rung after another and saves the chosen one. A complete rung is never trained again."""
    checkpoint.require()
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"The folder {options.folder} cannot be made: {error.strerror or error}.",
            hint="Name another folder with --to.",
        ) from error
    # PyTorch imports its compiler when the first optimizer is made. These seconds are no training.
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    run = _Run(data, options, progress or (lambda rung, round_, score, seconds: None))
    return run.run_ladder()


def _identity(data: OwnData, seed: int) -> Plain:
    """The data and the seed to which the rungs in a folder belong."""
    target = data.preparation.get("target", {}).get("name", "")
    return {"data": data.fingerprint, "target": target, "seed": seed}


class _Run:
    """One run of the ladder: the finished rungs, and the best of them."""

    def __init__(self, data: OwnData, options: LadderOptions, progress: Progress) -> None:
        self.data, self.options, self.progress = data, options, progress
        self.rungs = rungs_for(data)
        self.identity = _identity(data, options.seed)
        self.known = {} if options.fresh else self._read()
        self.started = time.perf_counter()
        self.done: list[RungResult] = []
        self.chosen: RungResult | None = None

    def run_ladder(self) -> LadderResult:
        idle = 0
        for rung in self.rungs:
            result = self._train(rung)
            self.done.append(result)
            if self.chosen is None or self._is_target(result) or result.improves(self.chosen, WORTH):
                self.chosen, idle = result, 0
                self._save_chosen(rung, result, None)
            else:
                idle += 1
            self._write()
            ended = self._ending(result, idle)
            if ended:
                return self._finish(ended)
        return self._finish("The ladder has no deeper rung for this data.")

    def _is_target(self, result: RungResult) -> bool:
        return self.options.target is not None and reaches(result.score, self.options.target)

    def _ending(self, result: RungResult, idle: int) -> str:
        """Why the ladder ends after this rung; empty if it goes on."""
        if self._is_target(result):
            return f"Rung {result.number} reached the target."
        if reaches(result.score, 1.0):
            return f"Rung {result.number} made no error on what it was chosen on."
        if not result.complete:
            return f"The time is over; rung {result.number} did not train to its end."
        if idle == TRIES:
            return "Two rungs in a row were not worth their time."
        return "The time is over." if self._spent() >= self.options.seconds else ""

    def _train(self, rung: Rung) -> RungResult:
        """The rung as it was left, trained further unless it is complete or good enough already."""
        before = self.known.get(rung.number)
        if before is not None and (before.complete or self._is_enough(before)):
            return before
        lesson, folder = lesson_for(rung, self.data, self.data.choose), self._folder(rung)
        if self.options.fresh:
            (folder / _BEST).unlink(missing_ok=True)
        keeper = _BestWeights(folder / _BEST, lesson, resumes=self._resumes(folder))
        target = self.options.target
        goal = None if target is None else f"{lesson.metric}>={target - ROUNDING}"
        result = training.train_lesson(
            keeper.lesson,
            TrainingOptions(
                epochs=MOST_ROUNDS,
                until=goal,
                device=self.options.device,
                folder=folder,
                seed=self.options.seed,
                fresh=self.options.fresh,
                stop=lambda rows: self._stops(rung, lesson, rows),
            ),
            identity=TrainingIdentity(
                network=rung.network, settings=records.plain(rung.settings), data=self.data.fingerprint
            ),
        )
        return _result_of(rung, lesson, result.rows, sum(p.numel() for p in result.model.parameters()))

    def _is_enough(self, before: RungResult) -> bool:
        no_time = sum(known.seconds for known in self.known.values()) >= self.options.seconds
        return no_time or self._is_target(before)

    def _stops(self, rung: Rung, lesson: Lesson, rows: Sequence[EpochRow]) -> bool:
        """Whether the rung has trained enough, or its time is over. One round is always trained."""
        if len(rows) < 2:
            return False
        best, _ = _best_round(lesson, rows)
        seconds = sum(result.seconds for result in self.done) + rows[-1].seconds
        self.progress(rung, len(rows) - 1, best, seconds)
        return _is_complete(lesson, rows) or max(seconds, self._spent()) >= self.options.seconds

    def _spent(self) -> float:
        trained = sum(result.seconds for result in self.done)
        return max(trained, time.perf_counter() - self.started)

    def _finish(self, ended: str) -> LadderResult:
        assert self.chosen is not None
        rung = self.rungs[self.chosen.number - 1]
        model = self._model_of(rung)
        lesson = lesson_for(rung, self.data, self.data.exam)
        score = float(lesson.examine(model)[lesson.metric])
        count = self.data.examples[2]
        low, high = (None, None) if self.data.is_number else interval_of_share(score, count)
        exam = Exam(
            score=score,
            examples=count,
            low=low,
            high=high,
            baseline=self.data.baseline,
            classes=hits_of(self.data, model),
        )
        self._save_chosen(rung, self.chosen, exam)
        return LadderResult(
            data=self.data.name,
            form=self.data.form,
            metric=lesson.metric,
            parts=self.data.examples,
            subject=_subject(self.data),
            notes=self.data.notes,
            rungs=tuple(self.done),
            chosen=self.chosen.number,
            ended=ended,
            guide=GUIDE,
            rule=RULE,
            exam=exam,
            target=self.options.target,
            seconds=sum(result.seconds for result in self.done),
            limit_seconds=self.options.seconds,
            folder=self.options.folder,
        )

    def _model_of(self, rung: Rung) -> nn.Module:
        """The network as it was after its best round."""
        trees, _ = checkpoint.load(self._folder(rung) / _BEST)
        model = lesson_for(rung, self.data, self.data.choose).model()
        checkpoint.check_fit(model, trees["model"], self._folder(rung) / _BEST)
        model.load_state_dict(trees["model"])
        return model.eval()

    def _save_chosen(self, rung: Rung, result: RungResult, exam: Exam | None) -> None:
        saved.save(self.options.folder, self._model_of(rung), saved.describe(self.data, rung, result, exam))

    def _folder(self, rung: Rung) -> Path:
        return self.options.folder / "rungs" / f"{rung.number}-{rung.network}"

    def _resumes(self, folder: Path) -> bool:
        return not self.options.fresh and (folder / checkpoint.NAME).exists()

    def _read(self) -> dict[int, RungResult]:
        path = self.options.folder / _NOTES
        if not path.exists():
            return {}
        notes = records.load(path)
        if notes.get("identity") != self.identity:
            raise BadInput(
                f"{self.options.folder} holds a ladder on other data, another target or another seed.",
                hint="Name another folder with --to, or start again with --fresh, which overwrites it.",
            )
        results = records.convert(notes.get("rungs"), tuple[RungResult, ...], f"{path}: rungs")
        return {result.number: result for result in results}

    def _write(self) -> None:
        """Rungs of an earlier run that this one did not need stay written."""
        kept = {**self.known, **{result.number: result for result in self.done}}
        rows = [records.plain(kept[number]) for number in sorted(kept)]
        try:
            records.save_sealed(self.options.folder / _NOTES, {"identity": self.identity, "rungs": rows})
        except OSError as error:
            raise StoreError(
                f"{self.options.folder} cannot be written: {error.strerror or error}.",
                hint="Free some disk space, or name another folder with --to.",
            ) from error


class _BestWeights:
    """Keeps the weights of the best round on disk: a network often gets worse when it trains too long."""

    def __init__(self, path: Path, lesson: Lesson, resumes: bool) -> None:
        self.path, self.inner = path, lesson
        self.best: tuple[float, ...] | None = None
        self.trained = resumes  # the first test of a new training is that of the untrained network
        if resumes and path.exists():
            self.best = tuple(checkpoint.load(path)[1]["best"])
        self.lesson = dataclasses.replace(lesson, examine=self._examine)

    def _examine(self, model: nn.Module) -> dict[str, float]:
        figures = self.inner.examine(model)
        reached = _round_rank(self.inner, figures)
        if self.trained and (self.best is None or reached > self.best):
            self.best = reached
            checkpoint.save(self.path, {"model": dict(model.state_dict())}, {"best": list(reached)})
        self.trained = True
        return figures


def _result_of(rung: Rung, lesson: Lesson, rows: Sequence[EpochRow], parameters: int) -> RungResult:
    score, at = _best_round(lesson, rows)
    return RungResult(
        number=rung.number,
        title=rung.title,
        nodes=rung.nodes,
        score=score,
        best_round=at,
        rounds=len(rows) - 1,
        seconds=rows[-1].seconds,
        complete=_is_complete(lesson, rows),
        parameters=parameters,
        points=tuple((row.seconds, row.figures[lesson.metric]) for row in rows[1:]),
    )


def _round_rank(lesson: Lesson, figures: Mapping[str, float]) -> tuple[float, ...]:
    """A sort key of rounds: the score, and at equal scores the lower loss."""
    return figures[lesson.metric], -figures["loss"]


def _best_round(lesson: Lesson, rows: Sequence[EpochRow]) -> tuple[float, int]:
    """The best score of a trained network, and the round whose weights are kept."""
    merits = [_round_rank(lesson, row.figures) for row in rows[1:]]
    best = max(merits)
    return best[0], merits.index(best) + 1


def _is_complete(lesson: Lesson, rows: Sequence[EpochRow]) -> bool:
    rounds, losses = len(rows) - 1, [row.figures["loss"] for row in rows[1:]]
    last_gain = max(_best_round(lesson, rows)[1], losses.index(min(losses)) + 1)
    return rounds >= MOST_ROUNDS or rounds - last_gain >= PATIENCE


def _subject(data: OwnData) -> str:
    if data.form == "text":
        return "guesses the next character of a text"
    what = data.preparation.get("target", {}).get("name", "the class")
    if data.is_number:
        return f"predicts the number {what!r} from {data.facts['inputs']} inputs"
    inputs = f"{data.facts['inputs']} inputs" if data.form == "table" else "pictures"
    return (
        f"predicts {what if what == 'the class' else repr(what)}, {len(data.classes)} classes, from {inputs}"
    )
