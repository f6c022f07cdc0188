"""The answers of a saved network on new data: printed, as JSON, or written as CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from windtunnel import records
from windtunnel.choosing.own_data import fingerprint_of
from windtunnel.choosing.saved import NetworkAnswer, SavedNetwork, answer
from windtunnel.displays import Displayed
from windtunnel.errors import StoreError
from windtunnel.records import Plain

_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers(Displayed):
    """Answers in the order of the data. `score`: accuracy or R2 where the data says what is right."""

    name: str
    form: str
    data: str
    what: str
    answers: tuple[NetworkAnswer, ...]
    metric: str
    score: float | None
    judged: int
    notes: tuple[str, ...] = ()
    learned: str = ""

    def plain(self) -> Plain:
        """As data for JSON."""
        shown: Plain = records.plain(self)
        return shown

    def write(self, path: Path) -> None:
        """All answers as CSV."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["row", self.what, "certainty", "in the file"])
        for one in self.answers:
            share = "" if one.certainty is None else f"{one.certainty:.4f}"
            writer.writerow([one.row, one.predicted, share, one.wanted or ""])
        try:
            records.write_text(path, text.getvalue())
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror or error}.") from error

    def __str__(self) -> str:
        if self.form == "text":
            return self.answers[0].predicted
        lines = [f"{self.name} on {self.data}: {self.what} for {len(self.answers):,} {self._each()}"]
        lines += [f"  {note}" for note in self.notes]
        lines += self._table()
        if len(self.answers) > _SHOWN:
            lines.append(f"  ... and {len(self.answers) - _SHOWN:,} more; --to FILE.csv writes all")
        if self.score is not None:
            known = f"{self.judged:,} {self._each()} whose answer is known"
            lines.append(f"  {self.metric} {self.score:.3f} on {known}")
            lines += [f"  {self.learned}"] if self.learned else []
        return "\n".join(lines)

    def _each(self) -> str:
        return "pictures" if self.form == "images" else "rows"

    def _table(self) -> list[str]:
        shown = self.answers[:_SHOWN]
        head = ("row", "predicted", "certainty", "in the file")
        cells = [
            (
                one.row,
                one.predicted,
                "" if one.certainty is None else f"{one.certainty:.2f}",
                one.wanted or "",
            )
            for one in shown
        ]
        used = [n for n in range(4) if any(row[n] for row in cells)]
        wide = {n: max(len(row[n]) for row in [head, *cells]) for n in used}
        return ["  " + "  ".join(row[n].ljust(wide[n]) for n in used).rstrip() for row in [head, *cells]]


def answers_of(network: SavedNetwork, path: Path) -> Answers:
    """The network's answers for the data under `path`, and its score if the data has the right answers."""
    found, notes = answer(network, path)
    description = network.description
    number = description.form == "table" and not description.classes
    known = [one for one in found if one.wanted is not None]
    what = description.preparation.get("target", {}).get("name", "class")
    return Answers(
        name=description.rung.title,
        form=description.form,
        data=path.name,
        what=str(what),
        answers=tuple(found),
        metric="R2" if number else "accuracy",
        score=_score(known, number) if known else None,
        judged=len(known),
        notes=tuple(notes),
        learned=_caution(network, path),
    )


def _caution(network: SavedNetwork, path: Path) -> str:
    """What to say where the network is judged on the data that it learned from."""
    description = network.description
    if description.exam is None or fingerprint_of(path) != description.fingerprint:
        return ""
    return f"It learned from most of these; its exam on new ones was {description.exam.score:.3f}."


def _score(known: list[NetworkAnswer], number: bool) -> float:
    if not number:
        return sum(one.predicted == one.wanted for one in known) / len(known)
    given, right = (
        np.array([float(value or "nan") for value in values])
        for values in ([one.predicted for one in known], [one.wanted for one in known])
    )
    spread = float(((right - right.mean()) ** 2).mean())
    return 1 - float(((given - right) ** 2).mean()) / spread if spread else 0.0
