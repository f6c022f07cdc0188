"""windtunnel validate"""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import units
from windtunnel.cli import words
from windtunnel.errors import BadInput, nearest

if TYPE_CHECKING:
    from windtunnel.accuracy.validation import Judgement, Pair, Report, Share

HELP = """
Forecast every row of a table of measured steps and tell how far off the forecasts are.

The truth table is kept apart from all tuning; the tuning table shows what efficiencies were fitted on. Both come with the
package. Nothing is measured, and no GPU is needed.

[bold]Examples[/bold]

  windtunnel validate --on h200

  windtunnel validate --on h200 --rows

  windtunnel validate --on my_rows.jsonl --json

[bold]Exit codes[/bold]

  0 within the tolerances beside the table.   1 beyond them.   2 the input cannot be used.
"""
_TABLES = ("truth", "tuning")
_SECTIONS = {
    "all": "eager rows",
    "kind": "eager rows by kind",
    "precision": "eager rows by precision",
    "execution": "rows run another variant",
}
_WIDE = 34


def validate(
    on: Annotated[
        str, typer.Option("--on", help="A machine with a table (h200, ice-lake-2-cores), or FILE.jsonl.")
    ] = "h200",
    table: Annotated[str, typer.Option("--table", help="truth, or tuning.")] = "truth",
    rows: Annotated[bool, typer.Option("--rows", help="Tell every row.")] = False,
    as_json: words.Json = False,
) -> None:
    from windtunnel.accuracy import truth, validation

    if table not in _TABLES:
        raise BadInput(f"--table cannot be {table!r}.", hint=nearest(table, _TABLES))
    read = truth.read_table(truth.find_table(on, table))
    machine = validation.find_machine(read)
    pairs = validation.forecast_rows(read, machine, lambda done: _show_progress(done, len(read.rows)))
    _show_progress(len(read.rows), len(read.rows))
    report = validation.judge(read, machine.name, pairs)
    words.show(as_json, lambda: report.plain(rows), lambda: "\n".join(report_lines(report, rows)))
    if report.failures:
        raise typer.Exit(1)


def report_lines(report: Report, rows: bool) -> list[str]:
    """The report as text: a headline, the table, what was left out, and the verdict."""
    header = report.table.header
    where = header.get("gpu") or header.get("cpu") or report.machine
    known = ", ".join(f"{name} {header[name]}" for name in ("torch", "cuda") if header.get(name))
    lines = [
        f"forecasts for {report.machine} against {len(report.pairs)} rows measured {header.get('date', '')[:10]} on {where} {known}".rstrip()
    ]
    if rows:
        lines += _row_lines(report.pairs)
    for section, title in _SECTIONS.items():
        some = [judgement for judgement in report.judgements if judgement.section == section]
        if some:
            lines += [
                "",
                f"{title:{_WIDE}} {'rows':>5} {'median':>7} {'90th':>7} {'worst':>7} {'bias':>7}  {'asked' if section == 'all' else ''}".rstrip(),
            ]
            lines += [_line(judgement) for judgement in some]
    return lines + _left_out_lines(report) + _verdict_lines(report)


def _line(judgement: Judgement | Share) -> str:
    from windtunnel.accuracy.validation import Share

    asked = (
        "" if judgement.asked is None else f"  {'NOT MET' if judgement.over else 'met'}: {judgement.asked}"
    )
    name = f"  {judgement.name:{_WIDE - 2}}"
    if isinstance(judgement, Share):
        share = f"{judgement.count / judgement.rows:.0%}" if judgement.rows else "-"
        return f"{name} {judgement.rows:>5} {share:>7}{'':24}{asked}"
    found = judgement.found
    if found is None:
        return f"{name} {0:>5}{'':32}{asked}"
    return f"{name} {found.rows:>5} {found.median:>7.1%} {found.ninetieth:>7.1%} {found.worst:>+7.0%} {found.bias:>+7.1%}{asked}"


def _row_lines(pairs: tuple[Pair, ...]) -> list[str]:
    """Predicted over measured for device, step and memory of each row."""
    lines = ["", f"{'':60} {'device':>26} {'step':>26} {'peak memory':>26}  interval"]
    for pair in pairs:
        cells = [
            _cell(pair, quantity, device)
            for quantity, device in (("device", "s"), ("step", "s"), ("memory", "B"))
        ]
        inside = {True: "inside", False: "outside", None: ""}[pair.inside]
        lines.append(
            f"{textwrap.shorten(str(pair.row.case), 60, placeholder='...'):60} {' '.join(cells)}  {pair.reason and 'left out'}{inside}"
        )
    return lines


def _cell(pair: Pair, quantity: str, unit: str) -> str:
    predicted, measured, error = pair.predicted(quantity), pair.row.measured(quantity), pair.error(quantity)  # type: ignore[arg-type]
    told = " / ".join("-" if value is None else units.show(value, unit) for value in (predicted, measured))
    return f"{told} {'' if error is None else f'{error:+.0%}':>5}".rjust(26)


def _left_out_lines(report: Report) -> list[str]:
    if not report.left_out:
        return []
    lines = ["", f"{len(report.left_out)} of {len(report.pairs)} rows could not be judged:"]
    return lines + [f"  {pair.row.case}: {' '.join(pair.reason.split())[:160]}" for pair in report.left_out]


def _verdict_lines(report: Report) -> list[str]:
    from windtunnel.accuracy.truth import Tolerances

    if report.table.tolerances == Tolerances():
        return ["", f"No tolerances lie beside {report.table.path.name}: nothing was asked."]
    if report.failures:
        return ["", "Beyond the tolerances:", *(f"  {failure}" for failure in report.failures)]
    return ["", "Within all tolerances."]


def _show_progress(done: int, rows: int) -> None:
    """A long wait is told on a terminal, and nowhere else."""
    if sys.stderr.isatty():
        print(
            f"\r{done} of {rows} rows" if done < rows else f"\r{'':24}\r", end="", file=sys.stderr, flush=True
        )
