"""Chapters 10 to 12: data flow, memory, storage."""

from __future__ import annotations

from guidebook import charts
from guidebook.cases import DRIVES
from guidebook.drawings import GIB, Drawings, Spec
from guidebook.tables import DRIVE_NAMES, PLACES, REMEDIES, Tables
from guidebook.values import plain

_LOADERS = (1, 2, 4, 8, 16, 32)


def data_flow(t: Tables) -> Spec:
    cases = ("copied, then computed", "copied ahead", "data on the GPU")
    rows, order = [], []
    for devices in (1, 3, 4):
        for case in cases:
            step = t.step_of("data-flow", case, devices)
            name = f"{devices} GPU{'s' if devices > 1 else ''}, {case}"
            order.append(name)
            rows += [
                {"y": name, "x": 0.5, "part": "computing"},
                {"y": name, "x": step - 0.5, "part": "waiting for data"},
            ]
    title = "8 GB for each GPU in each step, one PCIe 4.0 bus, 0.5 s of computing"
    return charts.stacked(rows, title, "seconds of a step", order)


def prefetch_limit(t: Tables) -> Spec:
    rows = [
        {"x": gpus, "y": 100 * 0.5 / t.g.flow[f"{bus}.{gpus}"], "line": words}
        for bus, words in (("bus", "PCIe 4.0"), ("old bus", "PCIe 3.0"))
        for gpus in range(1, 9)
    ]
    title = "The example of 2018 with prefetch: share of the time in which the GPUs compute"
    return charts.lines(rows, title, "GPUs on one bus", "% of the time")


def decoding(t: Tables) -> Spec:
    rows = [
        {"x": n, "y": 1 / t.g.example_seconds(f"loaders.{n}"), "line": "pictures a second"} for n in _LOADERS
    ]
    title = "ResNet-50 on an H200 over the loaders; the line is what the GPU could use (by forecast)"
    limit = 1 / t.g.example_seconds("place.resident")
    return charts.lines(rows, title, "loaders", "pictures a second", 2, log_y=True, limit=limit)


def memory(t: Tables) -> Spec:
    names = {f"memory.{batch}": f"batch {batch}" for batch in (16, 32, 64, 128)}
    return _memory_of(t, names, "Memory of one training step of ResNet-50, by forecast")


def remedies(t: Tables) -> Spec:
    return _memory_of(t, REMEDIES, "Batch 128 of ResNet-50 with each remedy, by forecast")


def _memory_of(t: Tables, names: dict[str, str], title: str) -> Spec:
    rows = [
        {"y": words, "x": size / GIB, "part": part}
        for key, words in names.items()
        for part, size in t.g.memory_parts(key).items()
    ]
    limit = float(t.g.forecasts["memory.16"]["capacity_bytes"]) / GIB
    return charts.stacked(rows, title, "GiB; the line is what a GTX 1080 has", list(names.values()), limit)


def page_cache(t: Tables) -> Spec:
    rows = [
        {"y": words, "x": size / GIB, "text": f"{plain(size / GIB)} GiB"}
        for words, size in t.data_sizes().items()
    ]
    return charts.bars(rows, "How large data sets are", "GiB", log=True)


def storage(t: Tables) -> Spec:
    rows = [
        {"y": words, "x": 1 / t.g.example_seconds(key), "line": line}
        for one, eight, words in t.drive_keys()
        for key, line in ((one, "one H200"), (eight, "eight H200"))
    ]
    title = "ResNet-50: pictures a second by where the files are, by forecast"
    return charts.dots(rows, title, "pictures a second", [words for _, _, words in t.drive_keys()])


def old_drives(t: Tables) -> Spec:
    rows = [
        {"y": words, "x": t.step_of("data-flow", case, n), "line": f"{n} GPU{'s' if n > 1 else ''}"}
        for case, words in PLACES.items()
        for n in (1, 3, 4)
    ]
    title = "A step of the example of 2018; with data on the GPU it takes 0.5 s"
    return charts.dots(rows, title, "seconds of a step", list(PLACES.values()))


def record_files(t: Tables) -> Spec:
    rows = [
        {"y": DRIVE_NAMES[drive], "x": 1 / t.g.example_seconds(f"{key}.{drive}"), "line": words}
        for drive in DRIVES[:3]
        for key, words in (("drive", "a file for each picture"), ("packed", "1,000 pictures in a file"))
    ]
    title = "One H200 with 32 loaders: pictures a second from single and from large files"
    return charts.dots(rows, title, "pictures a second", [DRIVE_NAMES[drive] for drive in DRIVES[:3]])


drawings: Drawings = {
    "data-flow": data_flow,
    "prefetch-limit": prefetch_limit,
    "decoding": decoding,
    "memory": memory,
    "remedies": remedies,
    "page-cache": page_cache,
    "storage": storage,
    "old-drives": old_drives,
    "record-files": record_files,
}
