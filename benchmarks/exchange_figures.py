"""Figures of docs/findings.md on several workers: the time to a target for each form of exchange."""

from __future__ import annotations

import re
from collections.abc import Sequence

from windtunnel.reports import clusters
from windtunnel.study.rows import ClaimVerdict, StudyRow


class ExchangeFigures:
    """The committed rows of trainings by several workers under a simulated clock."""

    def __init__(self, rows: Sequence[StudyRow], verdicts: Sequence[ClaimVerdict]) -> None:
        self.rows = [row for row in rows if row.training is not None]
        self.verdicts = {verdict.claim: verdict for verdict in verdicts}

    def cells(self) -> str:
        return f"{len(self.rows):,}"

    def trainings(self) -> str:
        return f"{sum(len(row.training.seeds) for row in self.rows if row.training):,}"

    def seconds(self, figure: str, case: str, workers: int, form: str) -> str:
        """The median time to the target."""
        row = self._row(figure, case, workers, form)
        words = clusters.time_words(row)
        return "not reached" if words == "-" else words

    def times(self, figure: str, case: str, workers: int, first: str, second: str) -> str:
        """How many times as long the first form took."""
        one, other = (clusters.seconds_of(self._row(figure, case, workers, form)) for form in (first, second))
        assert one is not None and other is not None, (figure, case, workers, first, second)
        return f"{one / other:.1f}x"

    def gain(self, figure: str, case: str, workers: int, form: str = "sync") -> str:
        """How many times as fast as one worker."""
        alone = clusters.seconds_of(self._row("figure-6" if figure == "forty" else figure, case, 1, "sync"))
        many = clusters.seconds_of(self._row(figure, case, workers, form))
        assert alone is not None and many is not None
        return f"{alone / many:.1f}x"

    def table(self, figure: str) -> str:
        """The time to the target of every network, over workers and forms."""
        found = clusters.cases_of(row for row in self.rows if row.figure == figure)
        forms = list(dict.fromkeys(form for by in found.values() for form in clusters.forms_in(by)))
        lines = [["network", "workers", *forms]]
        for case, by in found.items():
            for workers, rows in by.items():
                best = self._best(rows)
                words = [clusters.time_words(rows.get(form)) for form in forms]
                marked = [
                    f"**{word}**" if form == best and len(rows) > 1 else word
                    for form, word in zip(forms, words, strict=True)
                ]
                lines.append([case, str(workers), *marked])
        body = ["| " + " | ".join(line) + " |" for line in lines]
        return "\n".join([body[0], "|---" * len(lines[0]) + "|", *body[1:]])

    def wins(self, figure: str, form: str) -> str:
        """In how many cells of several workers the form is the quickest."""
        found = clusters.cases_of(row for row in self.rows if row.figure == figure)
        cells = [rows for by in found.values() for rows in by.values() if len(rows) > 1]
        return f"{sum(self._best(rows) == form for rows in cells)} of {len(cells)}"

    def where(self, claim: str, ruling: str) -> str:
        """The parts in which a claim has a ruling."""
        names = [part.where for part in self.verdicts[claim].parts if part.ruling == ruling]
        return (
            "; ".join(re.sub(r"(guide-figure-6|8x8xh100) (\d+)$", r"\1, \2 workers", name) for name in names)
            or "none"
        )

    def _best(self, rows: dict[str, StudyRow]) -> str:
        times = {
            form: seconds for form, row in rows.items() if (seconds := clusters.seconds_of(row)) is not None
        }
        return min(times, key=lambda form: times[form]) if times else ""

    def _row(self, figure: str, case: str, workers: int, form: str) -> StudyRow:
        return clusters.cases_of(row for row in self.rows if row.figure == figure)[case][workers][form]
