"""Draw the plots of docs/findings.md from docs/results, and print the figures that its sentences have.

python benchmarks/findings.py
python benchmarks/findings.py collect STUDY docs/results/NAME.json STORE...       rows of stores as data to keep
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from windtunnel.reports.charts import Chart, save
from windtunnel.study import export
from windtunnel.study import study as studies
from windtunnel.study.results import published, results
from windtunnel.study.rows import Row
from windtunnel.study.selection import key_of

DOCS = Path(__file__).resolve().parents[1] / "docs"
KEPT_SAMPLES = 8
PANELS = ("published, 2017", "one core of a Xeon, 2026", "H200, 2026")
# One colour for a framework, in every plot.
COLOURS = {
    "Theano": "#4d4d4d",
    "Keras on Theano": "#a6761d",
    "Keras on TensorFlow": "#e6ab02",
    "fused": "#d62728",
    "JAX scan": "#1f77b4",
    "PyTorch loop": "#ff7f0e",
    "PyTorch module": "#9467bd",
    "PyTorch graph": "#8c564b",
    "NumPy by hand": "#2ca02c",
    "Theano, CPU": "#17becf",
}
NAMES = {
    "fused:epoch": "fused",
    "jax:scan": "JAX scan",
    "torch:loop": "PyTorch loop",
    "torch:module": "PyTorch module",
    "torch:graph": "PyTorch graph",
    "numpy:hand": "NumPy by hand",
}


def main(words: Sequence[str]) -> None:
    if words[:1] == ["collect"]:
        collect(words[1], Path(words[2]), [Path(word) for word in words[3:]])
    else:
        draw_all()


def collect(study: str, to: Path, stores: Sequence[Path]) -> None:
    """What was measured or failed, each cell once with the later store's row, and a few of its samples."""
    found = {}
    for store in stores:
        for row in results(studies.find(study), store, samples=KEPT_SAMPLES):
            if row.origin == "measured" and row.state != "waiting":
                found[row.figure, row.case, key_of(row)] = row
    export.write(list(found.values()), to)
    print(f"{len(found)} rows, {to.stat().st_size // 1024} KiB: {to}")


def draw_all() -> None:
    rows = measured()
    printed = published(studies.find("brandfonbrener-2017"))
    over_timesteps = lambda row: row.settings.get("n_rec") == 100
    over_units = lambda row: row.settings.get("n_steps") == 20
    lines(
        points(rows, printed, "n_steps", over_timesteps),
        "timesteps",
        "n_steps",
        "Time of an example over timesteps, 100 devices",
    )
    lines(
        points(rows, printed, "n_rec", over_units),
        "units",
        "n_rec",
        "Time of an example over recurrent units, 20 timesteps",
    )
    bars(rows)
    batches(rows)
    threads([*rows, *published(studies.find("wuensche-2018"))])


def measured() -> list[Row]:
    """All rows that were measured and kept."""
    return [
        row
        for path in sorted((DOCS / "results").glob("*.json"))
        for row in export.read(path)
        if row.origin == "measured" and row.step_seconds
    ]


def points(
    rows: Iterable[Row], printed: Iterable[Row], axis: str, wanted: Callable[[Row], bool]
) -> list[dict[str, Any]]:
    """One point for each size: the paper's setting (two inputs and outputs, relu, one example a step, one thread)."""
    found: dict[tuple[str, str, Any], float] = {}
    for row in rows:
        if row.job == "rnn" and row.label in NAMES and _is_plain(row) and wanted(row):
            panel = PANELS[2] if row.device == "gpu" else PANELS[1]
            if row.device == "gpu" or "2.80GHz" in row.device_name:
                found[panel, NAMES[row.label], row.settings[axis]] = row.step_seconds or 0.0
    for row in printed:
        name = _published_name(row)
        if name and row.step_seconds and _is_plain(row) and wanted(row):
            found[PANELS[0], name, row.settings[axis]] = row.step_seconds
    return [
        {"panel": panel, "line": name, axis: size, "us": seconds * 1e6}
        for (panel, name, size), seconds in sorted(found.items(), key=str)
    ]


def _is_plain(row: Row) -> bool:
    s = row.settings
    plain = (
        s.get("n_in", 2) == 2
        and s.get("activation", "relu") == "relu"
        and row.batch == 1
        and row.optimizer == "sgd"
        and row.data == "resident"
    )
    return plain and row.threads in (None, 1) and not row.figure.startswith("future")


def _published_name(row: Row) -> str:
    names = {
        "figure-02": "Theano",
        "figure-05": "Theano",
        "figure-06": "Keras on Theano",
        "figure-07": "Keras on TensorFlow",
        "figure-10": "Theano, CPU",
    }
    if row.figure == "figure-05" and row.device == "cpu":
        return "Theano, CPU"
    return names.get(row.figure, "")


def lines(values: Sequence[dict[str, Any]], name: str, axis: str, title: str) -> None:
    """Three panels beside one another with one scale of seconds."""
    x = {
        "field": axis,
        "type": "quantitative",
        "scale": {"type": "log"},
        "title": {"n_steps": "timesteps", "n_rec": "recurrent units"}[axis],
    }
    y = {
        "field": "us",
        "type": "quantitative",
        "scale": {"type": "log"},
        "title": "microseconds for an example",
    }
    shown = [one for one in COLOURS if any(value["line"] == one for value in values)]
    colour = {
        "field": "line",
        "type": "nominal",
        "scale": {"domain": shown, "range": [COLOURS[one] for one in shown]},
        "title": None,
        "legend": {"columns": 5},
    }
    spec = {
        "title": {"text": title, "anchor": "start"},
        "data": {"values": list(values)},
        "facet": {"column": {"field": "panel", "type": "nominal", "sort": list(PANELS), "title": None}},
        "spec": {
            "width": 230,
            "height": 250,
            "layer": [
                {"mark": {"type": "line", "strokeWidth": 1.6}, "encoding": {"x": x, "y": y, "color": colour}},
                {
                    "mark": {"type": "point", "filled": True, "size": 22},
                    "encoding": {"x": x, "y": y, "color": colour},
                },
            ],
        },
        "config": _config(),
    }
    draw(spec, name)


def bars(rows: Sequence[Row]) -> None:
    """Every framework on one core, at the sizes of a small lab network."""
    found: dict[str, float] = {}
    for row in rows:
        if (
            row.job == "rnn"
            and row.device == "cpu"
            and "2.80GHz" in row.device_name
            and _is_plain(row)
            and (row.settings["n_rec"], row.settings["n_steps"]) == (50, 20)
        ):
            found[row.label] = (row.step_seconds or 0.0) * 1e6
    values = [
        {"label": label, "us": us, "told": f"{us:,.0f}" if us >= 10 else f"{us:.1f}"}
        for label, us in sorted(found.items(), key=lambda pair: pair[1])
    ]
    for value in values:
        print(f"n_rec 50, n_steps 20, one core: {value['label']:<22}{value['us']:10.1f} us")
    y = {"field": "label", "type": "nominal", "sort": [value["label"] for value in values], "title": None}
    x = {
        "field": "us",
        "type": "quantitative",
        "scale": {"type": "log"},
        "title": "microseconds for an example",
    }
    spec = {
        "title": {
            "text": "50 devices, 20 timesteps, one core of a Xeon: the same step in every framework",
            "anchor": "start",
        },
        "data": {"values": values},
        "width": 520,
        "height": {"step": 20},
        "layer": [
            {
                "mark": {"type": "point", "filled": True, "size": 70, "color": "#1f77b4"},
                "encoding": {"x": x, "y": y},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 8},
                "encoding": {"x": x, "y": y, "text": {"field": "told"}},
            },
        ],
        "config": _config(),
    }
    draw(spec, "frameworks")


def batches(rows: Sequence[Row]) -> None:
    """On the core: of the GPU too few batches were measured."""
    values = []
    for row in rows:
        if row.figure == "future-batching" and row.label in NAMES and row.device == "cpu":
            values.append(
                {
                    "panel": f"{row.settings['n_rec']} units",
                    "line": NAMES[row.label],
                    "batch": row.batch,
                    "us": (row.example_seconds or 0) * 1e6,
                }
            )
    shown = [one for one in COLOURS if any(value["line"] == one for value in values)]
    x = {
        "field": "batch",
        "type": "quantitative",
        "scale": {"type": "log", "base": 2},
        "title": "examples in a batch",
    }
    y = {
        "field": "us",
        "type": "quantitative",
        "scale": {"type": "log"},
        "title": "microseconds for an example",
    }
    colour = {
        "field": "line",
        "type": "nominal",
        "scale": {"domain": shown, "range": [COLOURS[one] for one in shown]},
        "title": None,
    }
    spec = {
        "title": {"text": "Batches on one core of a Xeon: time of an example", "anchor": "start"},
        "data": {"values": values},
        "facet": {
            "column": {
                "field": "panel",
                "type": "nominal",
                "title": None,
                "sort": ["50 devices", "200 devices"],
            }
        },
        "spec": {
            "width": 260,
            "height": 220,
            "mark": {"type": "line", "point": True},
            "encoding": {"x": x, "y": y, "color": colour},
        },
        "config": _config(),
    }
    draw(spec, "batches")


def threads(rows: Sequence[Row]) -> None:
    """Table I: seconds of a mini-batch over threads, beside what was published."""
    values = []
    for row in rows:
        if row.figure == "table-1" and row.step_seconds and row.threads:
            panel = (
                "published: i7-3820, 4 cores"
                if row.origin == "published"
                else "Xeon, 2 cores"
                if "2.80GHz" in row.device_name
                else "Xeon of an H200, 16 cores"
            )
            values.append(
                {"panel": panel, "line": row.label, "threads": row.threads, "seconds": row.step_seconds}
            )
    for panel in sorted({value["panel"] for value in values}):
        for line in sorted({value["line"] for value in values if value["panel"] == panel}):
            told = {v["threads"]: v["seconds"] for v in values if (v["panel"], v["line"]) == (panel, line)}
            print(
                f"table I, {panel}, {line}: "
                + ", ".join(f"{count}: {seconds:.3f} s" for count, seconds in sorted(told.items()))
            )
    x = {"field": "threads", "type": "quantitative", "scale": {"type": "log", "base": 2}, "title": "threads"}
    y = {
        "field": "seconds",
        "type": "quantitative",
        "scale": {"type": "log"},
        "title": "seconds for a mini-batch of 64",
    }
    spec = {
        "title": {"text": "Table I: a fully connected network of 118 million weights", "anchor": "start"},
        "data": {"values": values},
        "facet": {"column": {"field": "panel", "type": "nominal", "title": None}},
        "spec": {
            "width": 200,
            "height": 240,
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": x,
                "y": y,
                "color": {
                    "field": "line",
                    "type": "nominal",
                    "title": None,
                    "scale": {"scheme": "tableau20"},
                    "legend": {"columns": 6},
                },
            },
        },
        "config": _config(),
    }
    draw(spec, "threads")


def draw(spec: dict[str, Any], name: str) -> None:
    path = save(Chart(spec=spec), DOCS / "pictures" / f"findings-{name}.svg")
    print(f"{path.relative_to(DOCS.parent)}: {path.stat().st_size // 1024} KiB")


def _config() -> dict[str, Any]:
    return {
        "background": "white",
        "axis": {"gridOpacity": 0.4},
        "legend": {"orient": "bottom"},
        "view": {"stroke": "#ddd"},
    }


if __name__ == "__main__":
    main(sys.argv[1:])
