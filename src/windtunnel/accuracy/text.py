"""A validation as text: a headline, a table of errors, the rows without a forecast, and the verdict."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from windtunnel import units
from windtunnel.accuracy.gains import GAIN_QUANTITIES, Gain, GainQuantity
from windtunnel.accuracy.truth import QUANTITIES, Quantity, Tolerances

if TYPE_CHECKING:
    from windtunnel.accuracy.validation import Judgement, Pair, Share, Validation

_SECTIONS = {
    "all": "eager rows",
    "kind": "eager rows by kind",
    "precision": "eager rows by precision",
    "execution": "rows with another execution",
    "compiled": "compiled rows with an eager row",
}
_JUDGED = ("all", "compiled")  # sections that have tolerances
_BASELINES = {"compiled": "no gain"}
_UNITS = {"device": "s", "step": "s", "memory": "B"}
_WIDE = 34


def lines(validation: Validation, rows: bool) -> list[str]:
    """The whole text; `rows` adds a line for every row."""
    text = _headline(validation)
    if rows:
        text += _row_lines(validation.pairs)
        text += _gain_lines(validation.gains)
    for section, title in _SECTIONS.items():
        some = [each for each in validation.judgements if each.section == section]
        if some:
            heads = "".join(f" {head:>7}" for head in ("median", "90th", "worst", "bias"))
            last = "  tolerance" if section in _JUDGED else ""
            baseline = _BASELINES.get(section, "roofline")
            text += ["", f"{title:{_WIDE}} {'rows':>5}{heads} {baseline:>9}{last}"]
            text += [_judgement_line(each) for each in some]
    return text + _left_out_lines(validation) + _verdict_lines(validation)


def _headline(validation: Validation) -> list[str]:
    header = validation.table.header
    where = header.get("gpu") or header.get("cpu") or validation.machine
    names = {"torch": "PyTorch", "cuda": "CUDA"}
    versions = ", ".join(f"{name} {header[key]}" for key, name in names.items() if header.get(key))
    return [
        f"Forecasts for {validation.machine} against {len(validation.pairs)} rows,"
        f" measured {str(header.get('date', ''))[:10]} on {where} {versions}".rstrip(),
        "Errors are predicted / measured - 1. roofline: median error of the plain roofline on these rows.",
        *(
            ["gain: eager step / compiled step. no gain: median error if compiling changed nothing."]
            if validation.gains
            else []
        ),
    ]


def _judgement_line(judgement: Judgement | Share) -> str:
    from windtunnel.accuracy.validation import Share

    limit = ""
    if judgement.tolerance is not None:
        limit = f"  {'NOT MET' if judgement.broken else 'met'}: {judgement.tolerance}"
    name = f"  {judgement.name:{_WIDE - 2}}"
    if isinstance(judgement, Share):
        share = f"{judgement.count / judgement.rows:.0%}" if judgement.rows else "-"
        return f"{name} {judgement.rows:>5} {share:>7}{'':34}{limit}".rstrip()
    errors = judgement.errors
    if errors is None:
        return f"{name} {0:>5}{'':42}{limit}".rstrip()
    numbers = f"{errors.median:>7.1%} {errors.ninetieth:>7.1%} {errors.worst:>+7.0%} {errors.bias:>+7.1%}"
    baseline = "-" if judgement.baseline is None else f"{judgement.baseline.median:.0%}"
    return f"{name} {errors.rows:>5} {numbers} {baseline:>9}{limit}".rstrip()


def _row_lines(pairs: tuple[Pair, ...]) -> list[str]:
    """Predicted and measured device time, step and memory of each row."""
    heads = "".join(f" {quantity:>26}" for quantity in QUANTITIES)
    text = ["", f"{'predicted / measured':60}{heads}  interval"]
    for pair in pairs:
        name = textwrap.shorten(str(pair.row.case), 60, placeholder="...")
        cells = " ".join(_quantity_cell(pair, quantity) for quantity in QUANTITIES)
        inside = {True: "inside", False: "outside", None: ""}[pair.inside]
        text.append(f"{name:60} {cells}  {pair.reason and 'left out'}{inside}")
    return text


def _gain_lines(gains: list[Gain]) -> list[str]:
    """Predicted and measured step, gain and memory of each compiled row."""
    if not gains:
        return []
    heads = "".join(f" {quantity:>26}" for quantity in GAIN_QUANTITIES)
    text = ["", f"{'compiled: predicted / measured':60}{heads}"]
    for gain in gains:
        name = textwrap.shorten(str(gain.compiled.row.case), 60, placeholder="...")
        text.append(f"{name:60} {' '.join(_gain_cell(gain, quantity) for quantity in GAIN_QUANTITIES)}")
    return text


def _gain_cell(gain: Gain, quantity: GainQuantity) -> str:
    unit = _UNITS.get(quantity)
    values = (gain.predicted(quantity), gain.measured(quantity))
    shown = " / ".join(
        "-" if value is None else units.show(value, unit) if unit else f"{value:.2f}x" for value in values
    )
    error = gain.error(quantity)
    return f"{shown} {'' if error is None else f'{error:+.0%}':>5}".rjust(26)


def _quantity_cell(pair: Pair, quantity: Quantity) -> str:
    values = (pair.predicted(quantity), pair.row.measured(quantity))
    shown = " / ".join("-" if value is None else units.show(value, _UNITS[quantity]) for value in values)
    error = pair.error(quantity)
    return f"{shown} {'' if error is None else f'{error:+.0%}':>5}".rjust(26)


def _left_out_lines(validation: Validation) -> list[str]:
    left_out = validation.left_out
    if not left_out:
        return []
    text = ["", f"{len(left_out)} of {len(validation.pairs)} rows could not be judged:"]
    return text + [f"  {pair.row.case}: {' '.join(pair.reason.split())[:160]}" for pair in left_out]


def _verdict_lines(validation: Validation) -> list[str]:
    if validation.table.tolerances == Tolerances():
        return ["", f"There are no tolerances beside {validation.table.path.name}."]
    if validation.failures:
        return ["", "Beyond the tolerances:", *(f"  {failure}" for failure in validation.failures)]
    return ["", "Within all tolerances."]
