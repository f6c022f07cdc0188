"""Profiles as plain data for a file, and back.

Every kind lists the names of its features. They must be those of this version, in the same order: trees refer
to a feature by its place in the list, so any difference would silently misprice ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from windtunnel.errors import BadRecord
from windtunnel.families.recurrent import WORKSPACE_TERMS
from windtunnel.forecast.profile import MOST_SPREAD, Kind, Profile, feature_names
from windtunnel.forecast.trees import Trees

FORMAT = 5  # since 5 with a checksum in the file
UNSEALED = 4
_PROBE_AGAIN = "Probe again: windtunnel machine probe"
_TEXTS = ("name", "target", "model", "date")
_SECONDS = ("fixed_seconds", "gap_seconds", "node_seconds", "launch_seconds")
_FACTORS = ("device_spread", "host_spread", "launch_cost_factor", "cached_op_factor")
_SCALARS = (*_TEXTS, *_SECONDS, *_FACTORS)
# No probe measures beyond these: a figure outside of them would only overflow later.
_MOST_SECONDS, _FACTOR_RANGE, _LARGEST = 3600.0, (1e-3, MOST_SPREAD), 1e30


def plain(profile: Profile) -> dict[str, Any]:
    """Plain data for a file; figures of the trees to four digits."""
    return {
        "format": FORMAT,
        **{name: getattr(profile, name) for name in _SCALARS},
        "versions": dict(profile.versions),
        "copies": {name: [list(pair) for pair in timed] for name, timed in profile.copies.items()},
        "rounding": dict(profile.rounding),
        "workspaces": dict(profile.workspaces),
        "workspace_coefficients": {
            name: list(times) for name, times in profile.workspace_coefficients.items()
        },
        "epochs": [list(row) for row in profile.epochs],
        "kinds": {name: _plain_kind(kind) for name, kind in sorted(profile.kinds.items())},
    }


def read(data: Mapping[str, Any], where: str) -> Profile:
    """A profile from plain data. Another format, other features and bad figures are refused."""
    if data.get("format") not in (FORMAT, UNSEALED):
        raise BadRecord(
            f"{where} is a profile of format {str(data.get('format'))[:40]}; "
            f"this version reads {UNSEALED} and {FORMAT}.",
            hint=_PROBE_AGAIN,
        )
    try:
        profile = _read(data)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadRecord(
            f"{where} does not read as a profile: {type(error).__name__} {str(error)[:80]}", hint=_PROBE_AGAIN
        ) from error
    for problem in _problems(profile):
        raise BadRecord(f"{where}: {problem}", hint=_PROBE_AGAIN)
    return profile


def _read(data: Mapping[str, Any]) -> Profile:
    coefficients = data.get("workspace_coefficients", {})
    return Profile(
        **{name: data[name] for name in _SCALARS if name != "launch_seconds"},
        versions=dict(data["versions"]),
        kinds={name: _read_kind(kind) for name, kind in data["kinds"].items()},
        launch_seconds=float(data.get("launch_seconds", 0.0)),
        copies={
            name: tuple((float(size), float(seconds)) for size, seconds in timed)
            for name, timed in data.get("copies", {}).items()
        },
        rounding={name: int(size) for name, size in data.get("rounding", {}).items()},
        workspaces={name: float(size) for name, size in data.get("workspaces", {}).items()},
        workspace_coefficients={name: tuple(map(float, times)) for name, times in coefficients.items()},
        epochs=tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in data.get("epochs", [])),
    )


def _problems(profile: Profile) -> list[str]:
    """What is wrong with a profile; `read` raises the first."""
    problems = [] if profile.kinds else ["an empty profile: no kind of op was timed."]
    for name, kind in profile.kinds.items():
        problem = _feature_problem(kind.features, feature_names(name))
        if problem:
            problems.append(f"the features of {name!r} are not those of this version: {problem}.")
    invalid = [name for name, kind in profile.kinds.items() if not _is_good(kind)]
    problems += [f"{name} cannot be {getattr(profile, name)!r:.60}." for name in _bad_scalars(profile)]
    if not _has_finite_figures(profile):
        invalid.insert(0, "its own figures")
    if invalid:
        problems.append(f"invalid figures in {', '.join(invalid)}.")
    for name, times in profile.workspace_coefficients.items():
        if len(times) != WORKSPACE_TERMS:
            problems.append(f"{name!r} has not {WORKSPACE_TERMS} figures.")
    return problems


def _is_good(kind: Kind) -> bool:
    """Whether all figures of a kind are numbers, and its trees ask for features that it has."""
    low, high = _FACTOR_RANGE
    figures = (*kind.flop, *kind.bytes, *kind.kernels.values())
    return (
        _is_within(kind.spread, low, high)
        and bool((np.abs(np.array(figures, dtype=np.float64)) <= _LARGEST).all())
        and all(_is_finite(trees) and _has_shape(trees, len(kind.features)) for trees in kind.trees)
    )


def _has_shape(trees: Trees, features: int) -> bool:
    """Whether every tree has a leaf for each combination of answers, and asks for known features."""
    asked = trees.features
    if not asked.size:
        return True
    leaves = (len(asked), 2 ** asked.shape[1])
    return bool(trees.leaves.shape == leaves and asked.min() >= 0 and asked.max() < features)


def _feature_problem(names: Sequence[str], expected: Sequence[str]) -> str:
    """How two lists of features differ; empty if they do not."""
    if not expected:
        return "no family has this kind of work"
    missing = [name for name in expected if name not in names]
    unknown = [name for name in names if name not in expected]
    if missing or unknown:
        texts = (("missing", missing), ("unknown", unknown))
        return "; ".join(f"{word} {', '.join(listed)}" for word, listed in texts if listed)
    return "" if tuple(names) == tuple(expected) else f"another order; expected {', '.join(expected)}"


def _has_finite_figures(profile: Profile) -> bool:
    timed = (*profile.copies.values(), profile.epochs)
    numbers = [figure for table in timed for row in table for figure in row]
    numbers += [figure for row in profile.workspace_coefficients.values() for figure in row]
    numbers += [*profile.workspaces.values(), *profile.rounding.values()]
    is_positive = all(figure > 0 for table in timed for row in table for figure in row[:2])
    return is_positive and bool((np.abs(np.array(numbers, dtype=np.float64)) <= _LARGEST).all())


def _bad_scalars(profile: Profile) -> list[str]:
    """The fields of a profile that no probe can have written."""
    low, high = _FACTOR_RANGE
    bad = [name for name in _TEXTS if not isinstance(getattr(profile, name), str)]
    bad += [name for name in _SECONDS if not _is_within(getattr(profile, name), 0.0, _MOST_SECONDS)]
    return bad + [name for name in _FACTORS if not _is_within(getattr(profile, name), low, high)]


def _is_within(value: object, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def _is_finite(trees: Trees) -> bool:
    figures = (np.array([trees.base]), trees.leaves, trees.thresholds)
    return all(bool((np.abs(figure) <= _LARGEST).all()) for figure in figures)


def _plain_kind(kind: Kind) -> dict[str, Any]:
    learned = {"workspace": kind.workspace, "launches": kind.launches, "per_example": kind.per_example}
    return {
        "features": list(kind.features),
        "rows": kind.rows,
        "spread": round(kind.spread, 4),
        "flop": list(kind.flop),
        "bytes": list(kind.bytes),
        "kernels": dict(kind.kernels),
        "slowdown": _plain_trees(kind.slowdown),
        **{name: _plain_trees(trees) for name, trees in learned.items() if trees is not None},
    }


def _read_kind(data: Mapping[str, Any]) -> Kind:
    learned = {
        name: _read_trees(data[name]) for name in ("workspace", "launches", "per_example") if name in data
    }
    return Kind(
        features=tuple(map(str, data["features"])),
        slowdown=_read_trees(data["slowdown"]),
        rows=int(data["rows"]),
        spread=float(data["spread"]),
        flop=(float(data["flop"][0]), float(data["flop"][1])),
        bytes=(float(data["bytes"][0]), float(data["bytes"][1])),
        kernels={name: float(count) for name, count in data["kernels"].items()},
        **learned,
    )


def _plain_trees(trees: Trees) -> dict[str, Any]:
    """Every tree as one line of text: its questions, then its leaves in ten-thousandths as whole numbers."""
    lines = []
    for features, thresholds, leaves in zip(
        trees.features.tolist(), trees.thresholds.tolist(), trees.leaves.tolist(), strict=True
    ):
        questions = " ".join(
            f"{feature}>{threshold:.5g}" for feature, threshold in zip(features, thresholds, strict=True)
        )
        lines.append(f"{questions} | {' '.join(str(round(leaf * 1e4)) for leaf in leaves)}")
    return {"base": trees.base, "trees": lines}


def _read_trees(data: Mapping[str, Any]) -> Trees:
    features, thresholds, leaves = [], [], []
    for line in data["trees"]:
        questions, _, values = line.partition("|")
        pairs = [question.split(">") for question in questions.split()]
        features.append([int(feature) for feature, _ in pairs])
        thresholds.append([float(threshold) for _, threshold in pairs])
        leaves.append(np.array(values.split(), dtype=np.float64) / 1e4)
    return Trees(
        base=float(data["base"]),
        features=np.array(features, dtype=np.int64).reshape(len(features), -1),
        thresholds=np.array(thresholds).reshape(len(features), -1),
        leaves=np.array(leaves).reshape(len(features), -1),
    )
