"""Writes docs/accuracy.json: what `windtunnel validate` says today, row by row and in all.

python benchmarks/accuracy.py [MACHINE...]

README.md and docs/accuracy.md are held to this file by tests, and a few rows of it are forecast again there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windtunnel.accuracy.gains import GAIN_QUANTITIES, Gain
from windtunnel.accuracy.truth import QUANTITIES
from windtunnel.accuracy.validation import Pair, Validation, validate

FILE = Path(__file__).resolve().parents[1] / "docs/accuracy.json"
MACHINES = (
    "h200",
    "h200-second",
    "h200-compiled",
    "emerald-rapids-2-cores",
    "epyc-milan-2-cores",
    "epyc-turin-2-cores",
    "ice-lake-2-cores",
)
SECTIONS = ("all", "execution", "compiled")


def main(machines: Sequence[str]) -> None:
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    for machine in machines or MACHINES:
        known[machine] = summary(validate(machine))
        FILE.write_text(dump(known))
        print(f"{FILE.name}: {machine}, {len(known[machine]['rows'])} rows")


def summary(validation: Validation) -> dict[str, Any]:
    """The judgements over all eager rows and over other executions, every row's errors, and the errors of
    what torch.compile gains."""
    judgements = [each.plain() for each in validation.judgements if each.section in SECTIONS]
    return {
        "table": validation.table.path.name,
        "judgements": [rounded(each) for each in judgements],
        "rows": [errors_of(pair) for pair in validation.pairs],
        "gains": [errors_of_gain(gain) for gain in validation.gains],
    }


def errors_of_gain(gain: Gain) -> dict[str, Any]:
    fields: dict[str, Any] = {"case": str(gain.compiled.row.case)}
    for quantity in GAIN_QUANTITIES:
        fields[quantity] = gain.error(quantity)
        fields[f"{quantity} no_gain"] = gain.baseline_error(quantity)
    return rounded({name: value for name, value in fields.items() if value is not None})


def errors_of(pair: Pair) -> dict[str, Any]:
    case = pair.row.case
    fields: dict[str, Any] = {
        "case": str(case),
        "kind": case.kind,
        "execution": case.execution,
        "bound": pair.row.bound,
        "inside": pair.inside,
    }
    for quantity in QUANTITIES:
        fields[quantity] = pair.error(quantity)
        fields[f"{quantity} roofline"] = pair.roofline_error(quantity)
    return rounded({name: value for name, value in fields.items() if value is not None})


def rounded(value: Any) -> Any:
    """Seven decimals, all the way down."""
    if isinstance(value, float):
        return round(value, 7)
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def dump(data: dict[str, Any]) -> str:
    """One row to a line."""
    machines = []
    for machine, whole in data.items():
        parts = [f'"table": {json.dumps(whole["table"])}']
        for name in ("judgements", "rows", "gains"):
            if not whole.get(name):
                continue
            lines = ",\n".join(f"   {json.dumps(each)}" for each in whole[name])
            parts.append(f'"{name}": [\n{lines}\n  ]')
        machines.append(f" {json.dumps(machine)}: {{\n  " + ",\n  ".join(parts) + "\n }")
    return "{\n" + ",\n".join(machines) + "\n}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
