"""Draws the plots of docs/findings.md from docs/results; findings_text.py writes its text.

python benchmarks/findings.py
python benchmarks/findings.py collect STUDY docs/results/NAME.json STORE...  writes rows of stores to a file
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from windtunnel.reports import clusters, learned
from windtunnel.reports.charts import Chart, save
from windtunnel.study import export
from windtunnel.study import study as studies
from windtunnel.study.results import published, results
from windtunnel.study.rows import StudyRow as Row
from windtunnel.study.selection import key_of

DOCS = Path(__file__).resolve().parents[1] / "docs"
SAMPLES = 8  # of each row
_XEON = "2.80GHz"
PANELS = ("published, 2017", "one core of a Xeon, 2026", "H200, 2026")
# The colour of each framework in all plots.
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
    """Writes measured and failed cells with a few samples; of several stores the last one wins."""
    rows = {}
    for store in stores:
        for row in results(studies.find(study), store, samples=SAMPLES):
            if (row.origin == "measured" or row.training is not None) and row.state != "waiting":
                rows[row.figure, row.case, key_of(row)] = row
    export.write(list(rows.values()), to)
    print(f"{len(rows)} rows, {to.stat().st_size // 1024} KiB: {to}")


def draw_all() -> None:
    rows = measured()
    paper = published(studies.find("brandfonbrener-2017"))
    over_timesteps = points(rows, paper, "n_steps", lambda row: row.settings.get("n_rec") == 100)
    over_units = points(rows, paper, "n_rec", lambda row: row.settings.get("n_steps") == 20)
    lines(over_timesteps, "timesteps", "n_steps", "Time per example over timesteps, 100 hidden units")
    lines(over_units, "units", "n_rec", "Time per example over hidden units, 20 timesteps")
    bars(rows)
    batches(rows)
    threads([*rows, *published(studies.find("wuensche-2018"))])
    choice()
    exchange()


def exchange() -> None:
    """Time to the target over workers, for each form of exchange, network and machine."""
    rows = [
        row for path in sorted((DOCS / "results").glob("exchange-2026-*.json")) for row in export.read(path)
    ]
    titles = {"figure-6": "clusters of four GTX 1080", "h100": "nodes of eight H100"}
    for name, title in titles.items():
        drawn = clusters.target_chart(
            [row for row in rows if row.figure == name], f"Time to the target, {title}"
        )
        if drawn is not None:
            draw({**drawn.spec, "background": "white"}, f"exchange-{name}")


def choice() -> None:
    """What trained networks learned, over their nodes, initial weights and layers."""
    study = studies.find("choice-2026")
    rows = [
        row for path in sorted((DOCS / "results").glob("choice-2026-*.json")) for row in export.read(path)
    ]
    for figure in ("width", "initial-values", "depth"):
        chart = learned.chart(study.figure(figure), learned.lines_of(study.figure(figure), rows))
        if chart is not None:
            draw({**chart.spec, "background": "white"}, f"choice-{figure}")


def measured() -> list[Row]:
    """All measured rows of the studies in docs/results."""
    return [
        row
        for study in ("brandfonbrener-2017", "wuensche-2018")
        for path in sorted((DOCS / "results").glob(f"{study}-*.json"))
        for row in export.read(path)
        if row.origin == "measured" and row.step_seconds
    ]


def points(
    rows: Iterable[Row], paper: Iterable[Row], axis: str, is_wanted: Callable[[Row], bool]
) -> list[dict[str, Any]]:
    """One point per size in the setting of the paper: two inputs and outputs, relu, batch 1, one thread."""
    seconds_at: dict[tuple[str, str, Any], float] = {}
    for row in rows:
        if row.job == "rnn" and row.label in NAMES and _is_paper_setting(row) and is_wanted(row):
            panel = PANELS[1] if row.device == "cpu" else PANELS[2]
            if row.device != "cpu" or _XEON in row.device_name:
                seconds_at[panel, NAMES[row.label], row.settings[axis]] = row.step_seconds or 0.0
    for row in paper:
        name = _published_name(row)
        if name and row.step_seconds and _is_paper_setting(row) and is_wanted(row):
            seconds_at[PANELS[0], name, row.settings[axis]] = row.step_seconds
    return [
        {"panel": panel, "line": name, axis: size, "us": seconds * 1e6}
        for (panel, name, size), seconds in sorted(seconds_at.items(), key=str)
    ]


def _is_paper_setting(row: Row) -> bool:
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
    """Three panels side by side on one scale of microseconds."""
    x = _log_axis(axis, {"n_steps": "timesteps", "n_rec": "hidden units"}[axis])
    encoding = {"x": x, "y": _MICROSECONDS, "color": {**_colour(values), "legend": {"columns": 5}}}
    layer = [
        {"mark": {"type": "line", "strokeWidth": 1.6}, "encoding": encoding},
        {"mark": {"type": "point", "filled": True, "size": 22}, "encoding": encoding},
    ]
    panel = {"width": 230, "height": 250, "layer": layer}
    draw({**_base(title, values), **_columns(panel, list(PANELS))}, name)


def bars(rows: Sequence[Row]) -> None:
    """Every framework on one core, for a network of the size that small labs use."""
    microseconds = {
        row.label: (row.step_seconds or 0.0) * 1e6
        for row in rows
        if row.job == "rnn"
        and row.device == "cpu"
        and _XEON in row.device_name
        and _is_paper_setting(row)
        and (row.settings["n_rec"], row.settings["n_steps"]) == (50, 20)
    }
    values = [
        {"label": label, "us": us, "text": f"{us:,.0f}" if us >= 10 else f"{us:.1f}"}
        for label, us in sorted(microseconds.items(), key=lambda pair: pair[1])
    ]
    for value in values:
        print(f"n_rec 50, n_steps 20, one core: {value['label']:<22}{value['us']:10.1f} us")
    y = {"field": "label", "type": "nominal", "sort": [value["label"] for value in values], "title": None}
    encoding = {"x": _MICROSECONDS, "y": y}
    point = {"type": "point", "filled": True, "size": 70, "color": "#1f77b4"}
    layer = [
        {"mark": point, "encoding": encoding},
        {
            "mark": {"type": "text", "align": "left", "dx": 8},
            "encoding": {**encoding, "text": {"field": "text"}},
        },
    ]
    title = "50 hidden units, 20 timesteps, one core of a Xeon: the same step in every framework"
    draw({**_base(title, values), "width": 520, "height": {"step": 20}, "layer": layer}, "frameworks")


def batches(rows: Sequence[Row]) -> None:
    """On one core only: too few batches were measured on the GPU."""
    values = [
        {
            "panel": f"{row.settings['n_rec']} hidden units",
            "line": NAMES[row.label],
            "batch": row.batch,
            "us": (row.example_seconds or 0) * 1e6,
        }
        for row in rows
        if row.figure == "future-batching" and row.label in NAMES and row.device == "cpu"
    ]
    encoding = {"x": _log_axis("batch", "batch", base=2), "y": _MICROSECONDS, "color": _colour(values)}
    panel = {"width": 260, "height": 220, "mark": {"type": "line", "point": True}, "encoding": encoding}
    order = ["50 hidden units", "200 hidden units"]
    title = "Batches on one core of a Xeon: time per example"
    draw({**_base(title, values), **_columns(panel, order)}, "batches")


def threads(rows: Sequence[Row]) -> None:
    """Table I: seconds of a mini-batch over threads, beside the published values."""
    values = [
        {
            "panel": _processor(row),
            "line": row.label,
            "threads": row.threads,
            "seconds": row.step_seconds,
        }
        for row in rows
        if row.figure == "table-1" and row.step_seconds and row.threads
    ]
    for panel, line in sorted({(str(value["panel"]), str(value["line"])) for value in values}):
        own = {v["threads"]: v["seconds"] for v in values if (v["panel"], v["line"]) == (panel, line)}
        text = ", ".join(f"{count}: {seconds:.3f} s" for count, seconds in sorted(own.items()))
        print(f"table I, {panel}, {line}: {text}")
    colour = {
        "field": "line",
        "type": "nominal",
        "title": None,
        "scale": {"scheme": "tableau20"},
        "legend": {"columns": 6},
    }
    x, y = _log_axis("threads", "threads", base=2), _log_axis("seconds", "seconds for a mini-batch of 64")
    encoding = {"x": x, "y": y, "color": colour}
    panel_spec = {"width": 200, "height": 240, "mark": {"type": "line", "point": True}, "encoding": encoding}
    title = "Table I: a fully connected network of 118 million weights"
    draw({**_base(title, values), **_columns(panel_spec)}, "threads")


def _processor(row: Row) -> str:
    if row.origin == "published":
        return "published: i7-3820, 4 cores"
    if "EPYC" in row.device_name:
        return "EPYC, 2 cores"
    return "Xeon, 2 cores" if _XEON in row.device_name else "Xeon of an H200, 16 cores"


def _log_axis(field: str, title: str, base: int = 10) -> dict[str, Any]:
    scale = {"type": "log"} if base == 10 else {"type": "log", "base": base}
    return {"field": field, "type": "quantitative", "scale": scale, "title": title}


_MICROSECONDS = _log_axis("us", "microseconds per example")


def _colour(values: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The colours of the frameworks that occur."""
    shown = [name for name in COLOURS if any(value["line"] == name for value in values)]
    scale = {"domain": shown, "range": [COLOURS[name] for name in shown]}
    return {"field": "line", "type": "nominal", "scale": scale, "title": None}


def _columns(panel: dict[str, Any], order: Sequence[str] = ()) -> dict[str, Any]:
    """One column per value of the field `panel`."""
    column = {"field": "panel", "type": "nominal", "title": None, **({"sort": list(order)} if order else {})}
    return {"facet": {"column": column}, "spec": panel}


def _base(title: str, values: Sequence[dict[str, Any]]) -> dict[str, Any]:
    config = {
        "background": "white",
        "axis": {"gridOpacity": 0.4},
        "legend": {"orient": "bottom"},
        "view": {"stroke": "#ddd"},
    }
    return {
        "title": {"text": title, "anchor": "start"},
        "data": {"values": list(values)},
        "config": config,
    }


def draw(spec: dict[str, Any], name: str) -> None:
    path = save(Chart(spec=spec), DOCS / "pictures" / f"findings-{name}.svg")
    print(f"{path.relative_to(DOCS.parent)}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
