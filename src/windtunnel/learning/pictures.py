"""Pictures without a plotting library: a sheet of images as PNG, a learning curve as SVG, and both kinds of bars as text."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import torch
from torch import Tensor

from windtunnel import records

_SPARKS = "▁▂▃▄▅▆▇█"
_INK, _PALE = "#1f2a44", "#d9dde5"
_COLOURS = ("#2563a8", "#c2571a")
_LEFT, _TOP, _WIDE, _HIGH = 62, 44, 560, 190


def save_sheet(path: Path, images: Tensor, columns: int = 10, scale: int | None = None) -> Path:
    """Images (example, channel, row, column) with values 0..1 side by side in one PNG, enlarged so that small ones can be seen."""
    pixels = (
        images.detach().to("cpu", torch.float32).nan_to_num(0).clamp(0, 1).mul(255).round().to(torch.uint8)
    )
    count, channels, height, width = pixels.shape
    factor = scale or max(1, 48 // max(height, width))
    large = pixels.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
    gap, rows = 2, math.ceil(count / columns)
    canvas = torch.full(
        (channels, rows * (height * factor + gap) + gap, columns * (width * factor + gap) + gap),
        96,
        dtype=torch.uint8,
    )
    for i, image in enumerate(large):
        top, left = gap + i // columns * (height * factor + gap), gap + i % columns * (width * factor + gap)
        canvas[:, top : top + height * factor, left : left + width * factor] = image
    return png(canvas, path)


def png(pixels: Tensor, path: Path) -> Path:
    """Bytes (channel, row, column), grey or colour, as a PNG file."""
    channels, height, width = pixels.shape
    colour = {1: 0, 3: 2}[channels]
    lines = b"".join(b"\0" + row.numpy().tobytes() for row in pixels.permute(1, 2, 0).contiguous())
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    body = (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(lines, 9))
        + _chunk(b"IEND", b"")
    )
    return records.write_whole(path, body)


def spark(values: Sequence[float], width: int = 40) -> str:
    """A curve in one line of text, from its lowest to its highest value."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return ""
    picked = (
        [finite[round(i * (len(finite) - 1) / (min(width, len(finite)) - 1))] for i in range(width)]
        if len(finite) > width
        else finite
    )
    low, high = min(finite), max(finite)
    return "".join(
        _SPARKS[round((v - low) / (high - low) * (len(_SPARKS) - 1)) if high > low else 0] for v in picked
    )


def bar(value: float, most: float, width: int = 32) -> str:
    """A bar as long as the logarithm of the value, so that widths of 10 and of 10,000 can stand in one picture."""
    return "█" * max(1, round(width * math.log1p(value) / math.log1p(max(most, 1))))


def curves(
    title: str,
    panels: Mapping[str, Sequence[tuple[float, float]]],
    path: Path,
    *,
    marks: Mapping[str, float] | None = None,
) -> Path:
    """Learning curves as SVG, one panel below the other, each over epochs; `marks` draws a dashed line at a target."""
    height = _TOP + len(panels) * (_HIGH + 58)
    wide = _LEFT + _WIDE + 28
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {height}" width="{wide}" height="{height}" font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{wide}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for i, (name, points) in enumerate(panels.items()):
        body += _panel(
            name, points, _TOP + i * (_HIGH + 58), _COLOURS[i % len(_COLOURS)], (marks or {}).get(name)
        )
    records.write_whole(path, "\n".join([*body, "</svg>", ""]))
    return path


def _panel(
    name: str, points: Sequence[tuple[float, float]], top: int, colour: str, mark: float | None
) -> list[str]:
    values = [y for _, y in points] + ([mark] if mark is not None else [])
    ticks_y, ticks_x = _ticks(min(values), max(values)), _whole_ticks(max(x for x, _ in points))
    low, high, last = ticks_y[0], ticks_y[-1], max(ticks_x[-1], max(x for x, _ in points), 1)

    def place(x: float, y: float) -> tuple[float, float]:
        return round(_LEFT + x / last * _WIDE, 1), round(top + 12 + (high - y) / (high - low) * _HIGH, 1)

    lines = [
        f'<text x="{_LEFT}" y="{top + 2}" fill="{colour}" font-weight="bold">{escape(name)}: {points[-1][1]:.4g} at the end</text>'
    ]
    for y in ticks_y:
        (left, at), (right, _) = place(0, y), place(last, y)
        lines.append(
            f'<line x1="{left}" y1="{at}" x2="{right}" y2="{at}" stroke="{_PALE}"/><text x="{left - 8}" y="{at + 4}" text-anchor="end">{y:g}</text>'
        )
    for x in ticks_x:
        across, bottom = place(x, low)
        lines.append(f'<text x="{across}" y="{bottom + 17}" text-anchor="middle">{x:g}</text>')
    across, bottom = place(last, low)
    lines.append(f'<text x="{across}" y="{bottom + 32}" text-anchor="end" fill="#5b6478">epoch</text>')
    if mark is not None:
        (left, at), (right, _) = place(0, mark), place(last, mark)
        lines.append(
            f'<line x1="{left}" y1="{at}" x2="{right}" y2="{at}" stroke="#3b7a3b" stroke-dasharray="6 4"/>'
        )
        lines.append(
            f'<text x="{right}" y="{top + 2}" text-anchor="end" fill="#3b7a3b">dashed: target {mark:g}</text>'
        )
    spots = " ".join(f"{x},{y}" for x, y in (place(*point) for point in points))
    lines.append(f'<polyline points="{spots}" fill="none" stroke="{colour}" stroke-width="2"/>')
    x, y = place(*points[-1])
    return [*lines, f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>']


def _ticks(low: float, high: float) -> list[float]:
    """Four to seven round numbers around the values."""
    span = high - low or abs(high) or 1.0
    rough = span / 4
    size = 10 ** math.floor(math.log10(rough))
    pace = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= rough)
    first, last = math.floor(low / pace + 1e-9), math.ceil(high / pace - 1e-9)
    return [round(i * pace, 12) for i in range(first, max(last, first + 1) + 1)]


def _whole_ticks(last: float) -> list[float]:
    pace = max(1, round(last / 8))
    return [float(x) for x in range(0, int(last) + 1, pace)]


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
