"""The text of the study commands: lists, tables of states, a dry run, and the progress of a run."""

from __future__ import annotations

import contextlib
import shlex
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel import records, units
from windtunnel.cli import training_text
from windtunnel.cli.printing import rewrite, tell
from windtunnel.foreign import shown, shown_lines
from windtunnel.records import Plain
from windtunnel.results import terminal_width

if TYPE_CHECKING:
    from windtunnel.measurement.frameworks.task import Task
    from windtunnel.measurement.store import StoredCell
    from windtunnel.study.run.cells import Cell
    from windtunnel.study.run.engine import Outcome
    from windtunnel.study.run.forecasts import Forecasts
    from windtunnel.study.run.progress import RunProgress
    from windtunnel.study.run.run_environment import RunEnvironment
    from windtunnel.study.run.runner import CellCounts, Order
    from windtunnel.study.study import Figure, Published, Study

_LINE_SECONDS = 10.0
_MOST_FAILURES = 10


def say(text: str) -> None:
    tell(text)


def head(study: Study) -> dict[str, object]:
    return {
        "name": study.name,
        "title": study.title,
        "authors": study.authors,
        "year": study.year,
        "figures": [f.name for f in study.figures],
    }


def list_lines(studies: Iterable[Study]) -> list[str]:
    lines = []
    for study in studies:
        printed = sum(_count(p) for figure in study.figures for p in figure.published)
        trained = sum(len(figure.trains) for figure in study.figures)
        holds = f"{trained} lines of networks to train" if trained else f"{printed} published times"
        lines += [
            f"{study.name:<24}{study.title}",
            f"{'':<24}{study.authors}, {study.year}; {len(study.figures)} figures, {holds}",
        ]
    return [
        *lines,
        "",
        "windtunnel study show STUDY shows one; windtunnel study run STUDY --quick measures its corners.",
    ]


def plain_study(study: Study) -> dict[str, object]:
    return {
        **head(study),
        "source": study.source,
        "note": study.note.strip(),
        "figures": records.plain(study.figures),
    }


def lines(study: Study) -> list[str]:
    """A study with a paragraph for each figure."""
    text = [
        f"{study.name}: {study.title}",
        f"  {study.authors}, {study.year}. {study.source}",
        "",
        *textwrap.wrap(study.note, terminal_width()),
        "",
    ]
    for figure in study.figures:
        text += [f"{figure.name:<22}{figure.title}", f"{'':<22}{figure.source}"]
        if figure.grid:
            text.append(
                f"{'':<22}" + " x ".join(f"{axis} {_values(values)}" for axis, values in figure.grid.items())
            )
        text += [f"{'':<22}{case.name}: {', '.join(case.labels)}" for case in figure.cases]
        text += [f"{'':<22}train, {case.name}: {case.seeds} seeds" for case in figure.trains]
        text += [f"{'':<22}forecast, {case.name}: {case.machine}" for case in figure.forecasts]
        text += [
            f"{'':<22}published, {printed.case}: {_count(printed)} times" for printed in figure.published
        ]
        text += [
            f"{'':<22}published, {quoted.name}: {quoted.value:g} {quoted.counted}" for quoted in figure.quoted
        ]
        text += [f"{'':<22}a plot over {plot.x} of {len(plot.lines)} lines" for plot in figure.plots]
    return [*text, "", f"Claims: {len(study.claims)}."]


def figure_lines(figure: Figure) -> list[str]:
    """One figure with every table as it was printed."""
    text = [
        f"{figure.name}: {figure.title}",
        f"  {figure.source}",
        *(f"  {line}" for line in figure.note.strip().splitlines()),
    ]
    text += [line for case in figure.trains for line in training_text.case_lines(figure, case)]
    for case in figure.forecasts:
        text.append(f"  forecast, {case.name}: {case.machine}{', ' if case.why else ''}{case.why}")
    for printed in figure.published:
        (down, tall), (across, wide) = _axis(printed.rows), _axis(printed.columns)
        text += ["", f"{printed.case} ({printed.device_name}, {printed.label}), {figure.published_unit}"]
        text += [
            f"  {down + ' / ' + across if across else down:<20}" + "".join(f"{value!s:>9}" for value in wide)
        ]
        text += [
            f"  {value!s:<20}" + "".join(f"{each!s:>9}" for each in row)
            for value, row in zip(tall, printed.table, strict=True)
        ]
    return text


def expected(order: Order, known: Forecasts) -> Callable[[Task], float]:
    from windtunnel.measurement.steady import LEVELS
    from windtunnel.study.run.progress import Pace

    pace = Pace(order.protocol(), known.step_seconds)
    return lambda task: pace.expect(task) * LEVELS[order.level].processes


def plain_cells(cells: Sequence[Cell], known: Forecasts, around: RunEnvironment) -> list[dict[str, object]]:
    return [
        {
            "figure": cell.figure,
            "case": cell.case,
            "task": records.plain(cell.task),
            "obstacle": around.obstacle(cell.task),
            "forecast": known.get(cell.task),
        }
        for cell in cells
    ]


def dry_lines(
    cells: Sequence[Cell], known: Forecasts, around: RunEnvironment, expect: Callable[[Task], float]
) -> list[str]:
    """Each task once: what it is, and its forecast or why it has none."""
    figures: dict[str, set[str]] = {}
    tasks = {}
    for cell in cells:
        tasks[repr(cell.task)] = cell.task
        figures.setdefault(repr(cell.task), set()).add(cell.figure)
    text = [f"{'framework':<22}{'step':>10}{'memory':>12}   figures", "    task"]
    total, apart = 0.0, Counter[str]()
    for name, task in tasks.items():
        obstacle = around.obstacle(task)
        if obstacle:
            apart[obstacle[0]] += 1
        else:
            total += expect(task)
        times = _forecast(known.get(task), obstacle)
        text += [f"{task.label:<22}{times}   {', '.join(sorted(figures[name]))}", f"    {_task(task)}"]
    left = "".join(f", {count} {state}" for state, count in sorted(apart.items()))
    runs = len(tasks) - sum(apart.values())
    return [
        *text,
        "",
        f"{runs} cells to measure in about {units.show(total, 's')}{left}. Only PyTorch's variants and the"
        " fused engine have a forecast; the others count by the time limits of a process.",
    ]


def failures(cells: Iterable[tuple[str, str, StoredCell]]) -> list[dict[str, str]]:
    from windtunnel.study.run.runner import is_failure

    failed = {cell.key: cell for _, _, cell in cells if is_failure(cell.state)}
    return [
        {
            "label": _label(k.task),
            "state": k.state,
            "error": k.error,
            "task": str(dict(k.task["settings"])),
        }
        for k in failed.values()
    ]


def _label(task: Plain) -> str:
    """framework:variant of a timed cell, the network and the seed of a trained one."""
    if "framework" in task:
        return f"{task['framework']}:{task['variant']}"
    return f"{task['network']}, seed {task['seed']},"


def plain_status(
    study: Study, counts: Mapping[tuple[str, str, str], int], owner: str, failed: list[dict[str, str]]
) -> dict[str, object]:
    cells = [
        {"figure": figure, "level": level, "state": state, "cells": count}
        for (figure, level, state), count in counts.items()
    ]
    return {"study": study.name, "running": owner or None, "cells": cells, "failures": failed}


def status_lines(
    study: Study, counts: Mapping[tuple[str, str, str], int], owner: str, failed: list[dict[str, str]]
) -> list[str]:
    if not counts:
        return [f"This store has nothing of {study.name} yet."]
    states = sorted(
        {state for _, _, state in counts}, key=lambda state: (state not in ("done", "waiting"), state)
    )
    widths = [max(9, len(state) + 2) for state in states]
    text = [
        f"{'figure':<26}{'level':<10}"
        + "".join(f"{state:>{wide}}" for state, wide in zip(states, widths, strict=True))
    ]
    for figure, level in sorted({(figure, level) for figure, level, _ in counts}):
        text.append(
            f"{figure:<26}{level:<10}"
            + "".join(
                f"{counts.get((figure, level, state), 0):>{wide}}"
                for state, wide in zip(states, widths, strict=True)
            )
        )
    text += [
        f"failed: {one['label']} {one['task']}: {one['state']}. {_first_line(one['error'])}"
        for one in failed[:_MOST_FAILURES]
    ]
    if len(failed) > _MOST_FAILURES:
        text.append(f"and {len(failed) - _MOST_FAILURES} more that failed; --json has all.")
    return [*text, f"Running: {owner}." if owner else "Nobody is running it now."]


def ending(study: Study, cell_counts: CellCounts, path: Path) -> str:
    """The summary at the end of a run."""
    from windtunnel.measurement.database import store_option

    counts = ", ".join(
        f"{count} {state}" for state, count in sorted(cell_counts.states.items(), key=lambda item: -item[1])
    )
    named = _named(study) + store_option(path)
    again = (
        f"\nwindtunnel study run {named} --rerun failed repeats the failed ones."
        if cell_counts.failed
        else ""
    )
    beside = "beside the published times" if any(f.published for f in study.figures) else "and the claims"
    report = f"windtunnel study report {named} shows them {beside}."
    return f"{study.name}: {counts}; in {path}.{again}\n{report}"


def _named(study: Study) -> str:
    """How a command names the study: by its name if the catalogue has it, else by its folder."""
    from windtunnel.study.study import CATALOG

    is_ours = study.folder == CATALOG / study.name
    return study.name if is_ours else shlex.quote(str(study.folder))


@contextlib.contextmanager
def forecasting() -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how many cells are forecast; silent elsewhere."""
    is_shown = sys.stderr.isatty()

    def count(done: int) -> None:
        if is_shown:
            rewrite(f"forecasting cells: {done}")

    yield count
    if is_shown:
        rewrite("", width=40, back=True)


@contextlib.contextmanager
def watching(name: str) -> Iterator[Callable[[Outcome | None, RunProgress], None]]:
    """A bar on a terminal, a line now and then elsewhere.

    It is updated between processes, never while one is timed.
    """
    if not sys.stderr.isatty():
        yield _Lines(name).tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[counted]}, {task.fields[left]} left"),
    )
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as bar:
        task = bar.add_task(shown(name), total=None, left="?", counted="processes")
        errors = _Errors(lambda text: bar.console.print(shown_lines(text), markup=False))

        def tell(outcome: Outcome | None, progress: RunProgress) -> None:
            errors.tell(outcome)
            bar.update(
                task,
                completed=progress.done,
                total=progress.wanted,
                left=units.show(progress.left_seconds, "s"),
                counted=progress.counted,
                refresh=True,
            )

        yield tell


class _Errors:
    """The first failure of each kind in full, as it happens."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.seen = say, set[tuple[str, str]]()

    def tell(self, outcome: Outcome | None) -> None:
        if outcome is None or outcome.state == "done":
            return
        kind = (outcome.work.task.label, outcome.state)
        if kind not in self.seen:
            self.seen.add(kind)
            task = outcome.work.task
            self.say(f"{task.label} {dict(task.settings)}: {outcome.state}. {outcome.error}")


class _Lines:
    """A line of progress every few seconds."""

    def __init__(self, name: str) -> None:
        self.name, self.last, self.errors = name, 0.0, _Errors(say)

    def tell(self, outcome: Outcome | None, progress: RunProgress) -> None:
        self.errors.tell(outcome)
        if time.monotonic() - self.last > _LINE_SECONDS or progress.done == progress.wanted:
            self.last = time.monotonic()
            failed = f", {progress.failed} cells failed" if progress.failed else ""
            left = units.show(progress.left_seconds, "s")
            done = f"{progress.done} of {progress.wanted} {progress.counted}"
            say(f"{self.name}: {done}{failed}, about {left} left")


def _task(task: Task) -> str:
    settings = " ".join(f"{name}={value}" for name, value in task.settings.items())
    return f"{task.device.upper()} x{task.threads} batch {task.batch} {task.data} {task.optimizer} {settings}"


def _forecast(forecast: Plain | None, obstacle: tuple[str, str] | None) -> str:
    if forecast and "step_seconds" in forecast:
        on = " on h200" if obstacle and obstacle[0] == "no gpu here" else ""
        step, memory = units.show(forecast["step_seconds"], "s"), units.show(forecast["peak_bytes"], "B")
        return f"{step:>10}{memory:>12}{on}"
    return f"{obstacle[0] if obstacle else 'no forecast':>22}"


def _axis(axis: Mapping[str, tuple[object, ...]]) -> tuple[str, tuple[object, ...]]:
    return next(iter(axis.items()), ("", ("",)))


def _count(printed: Published) -> int:
    return sum(value != "na" for row in printed.table for value in row)


def _values(values: Sequence[object]) -> str:
    return "{" + ", ".join(str(value) for value in values) + "}"


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0]
