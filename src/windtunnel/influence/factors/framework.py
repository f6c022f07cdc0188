"""The framework, from times that studies of the catalogue print: no forecast knows other frameworks."""

from __future__ import annotations

import functools
import math
from collections import defaultdict

from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, StatedTime, Variant
from windtunnel.influence.factors._sizes import unchanged
from windtunnel.influence.setup import VariedSetup
from windtunnel.study import study as studies
from windtunnel.study.rows import StudyRow


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    job = base.job.origin.job if base.job.origin else base.job.name
    groups = _comparable(job, base.machine.device.kind)
    if not groups:
        name, kind = base.job.name, base.machine.device.kind
        reason = f"no study of the catalogue prints {name} in two frameworks on a {kind}"
        return [CannotVary(name="framework", reason=reason)]
    rows = min(groups, key=lambda rows: _distance(rows[0], base))
    variants = tuple(_variant(row) for row in sorted(rows, key=lambda row: row.label))
    return [FactorRange(name="framework", variants=variants, note=_note(rows[0]))]


@functools.cache
def _published() -> tuple[StudyRow, ...]:
    return tuple(row for name in studies.names() for row in studies.find(name).published())


def _comparable(job: str, device: str) -> list[list[StudyRow]]:
    """Printed rows of one network on one device that differ in the framework alone."""
    groups = defaultdict[object, dict[str, StudyRow]](dict)
    for row in _published():
        if row.job != job or row.device != device or row.step_seconds is None or row.devices > 1:
            continue
        settings = tuple(sorted((key, str(value)) for key, value in row.settings.items()))
        place = (row.study, row.device_name, settings, row.threads, row.batch, row.data, row.optimizer)
        groups[place].setdefault(row.label.partition(":")[0], row)
    return [list(rows.values()) for rows in groups.values() if len(rows) > 1]


def _distance(row: StudyRow, base: VariedSetup) -> float:
    """How far the settings, the batch and the threads of a row are from the base, in factors of e."""
    origin = base.job.origin
    own = {} if origin is None else {**_defaults(base), **origin.settings}
    pairs = [(value, own.get(key)) for key, value in row.settings.items()]
    threads = base.strategy.threads or base.machine.device.cores or 1
    pairs += [(row.batch, base.batch), (row.threads or threads, threads)]
    return sum(
        abs(math.log(float(str(a)) / float(str(b)))) for a, b in pairs if _is_number(a) and _is_number(b)
    )


def _defaults(base: VariedSetup) -> dict[str, object]:
    import dataclasses

    from windtunnel import networks

    name = base.job.origin.job if base.job.origin else ""
    if name not in networks.names():
        return {}
    return {field.name: field.default for field in dataclasses.fields(networks.named(name).settings)}


def _is_number(value: object) -> bool:
    try:
        return float(str(value)) > 0
    except ValueError:
        return False


def _variant(row: StudyRow) -> Variant:
    assert row.example_seconds is not None
    stated = StatedTime(example_seconds=row.example_seconds, source=row.source or row.study)
    return Variant(label=row.label.partition(":")[0], change=unchanged, stated=stated)


def _note(row: StudyRow) -> str:
    settings = " ".join(f"{key}={value}" for key, value in row.settings.items())
    threads = f", {row.threads} threads" if row.threads else ""
    what = f" {settings}" if settings else ""
    return f"printed in {row.study} ({row.job}{what} on {row.device_name}{threads}), not forecast"


FACTOR = InfluenceFactor(
    name="framework", group="execution", what="frameworks that a study timed", vary=_vary
)
