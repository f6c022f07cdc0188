"""Pictures without a plotting library: sheets of images as PNG, learning curves as SVG, bars as text."""

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
_INK, _GRID, _GREEN = "#1f2a44", "#d9dde5", "#3b7a3b"
_COLOURS = ("#2563a8", "#c2571a")
_LEFT, _TOP, _WIDTH, _HEIGHT = 62, 44, 560, 190


def save_sheet(path: Path, images: Tensor, columns: int = 10, scale: int | None = None) -> Path:
    """Writes images (example, channel, row, column) with values 0..1 in one PNG; small ones are enlarged."""
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
    """A curve in one line of text, scaled from its lowest to its highest value."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return ""
    shown = finite
    if len(finite) > width:
        shown = [finite[round(i * (len(finite) - 1) / (width - 1))] for i in range(width)]
    low, high = min(finite), max(finite)
    return "".join(
        _SPARKS[round((v - low) / (high - low) * (len(_SPARKS) - 1)) if high > low else 0] for v in shown
    )


def bar(value: float, most: float, width: int = 32) -> str:
    """A bar whose length is the logarithm of the value, so that 10 and 10,000 fit in one picture."""
    return "█" * max(1, round(width * math.log1p(value) / math.log1p(max(most, 1))))


def curves(
    title: str,
    panels: Mapping[str, Sequence[tuple[float, float]]],
    path: Path,
    *,
    targets: Mapping[str, float] | None = None,
) -> Path:
    """Learning curves over epochs as SVG, one panel below the other; a dashed line shows a target."""
    height = _TOP + len(panels) * (_HEIGHT + 58)
    width = _LEFT + _WIDTH + 28
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for i, (name, points) in enumerate(panels.items()):
        top, colour = _TOP + i * (_HEIGHT + 58), _COLOURS[i % len(_COLOURS)]
        body += _panel(name, points, top, colour, (targets or {}).get(name))
    records.write_whole(path, "\n".join([*body, "</svg>", ""]))
    return path


def _panel(
    name: str, points: Sequence[tuple[float, float]], top: int, colour: str, target: float | None
) -> list[str]:
    values = [y for _, y in points] + ([target] if target is not None else [])
    ticks_y, ticks_x = _ticks(min(values), max(values)), _whole_ticks(max(x for x, _ in points))
    low, high, last = ticks_y[0], ticks_y[-1], max(ticks_x[-1], max(x for x, _ in points), 1)

    def position(x: float, y: float) -> tuple[float, float]:
        return round(_LEFT + x / last * _WIDTH, 1), round(top + 12 + (high - y) / (high - low) * _HEIGHT, 1)

    def horizontal(y: float, attributes: str) -> str:
        (left, at), (right, _) = position(0, y), position(last, y)
        return f'<line x1="{left}" y1="{at}" x2="{right}" y2="{at}" {attributes}/>'

    heading = f"{escape(name)}: {points[-1][1]:.4g} at the end"
    lines = [f'<text x="{_LEFT}" y="{top + 2}" fill="{colour}" font-weight="bold">{heading}</text>']
    for y in ticks_y:
        left, at = position(0, y)
        label = f'<text x="{left - 8}" y="{at + 4}" text-anchor="end">{y:g}</text>'
        lines.append(horizontal(y, f'stroke="{_GRID}"') + label)
    for x in ticks_x:
        across, bottom = position(x, low)
        lines.append(f'<text x="{across}" y="{bottom + 17}" text-anchor="middle">{x:g}</text>')
    right, bottom = position(last, low)
    lines.append(f'<text x="{right}" y="{bottom + 32}" text-anchor="end" fill="#5b6478">epoch</text>')
    if target is not None:
        lines.append(horizontal(target, f'stroke="{_GREEN}" stroke-dasharray="6 4"'))
        label = f"dashed: target {target:g}"
        lines.append(f'<text x="{right}" y="{top + 2}" text-anchor="end" fill="{_GREEN}">{label}</text>')
    spots = " ".join(f"{x},{y}" for x, y in (position(*point) for point in points))
    lines.append(f'<polyline points="{spots}" fill="none" stroke="{colour}" stroke-width="2"/>')
    x, y = position(*points[-1])
    return [*lines, f'<circle cx="{x}" cy="{y}" r="3.5" fill="{colour}"/>']


def _ticks(low: float, high: float) -> list[float]:
    """Four to seven round numbers around the values."""
    span = high - low or abs(high) or 1.0
    rough = span / 4
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= rough)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, max(last, first + 1) + 1)]


def _whole_ticks(last: float) -> list[float]:
    step = max(1, round(last / 8))
    return [float(x) for x in range(0, int(last) + 1, step)]


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
