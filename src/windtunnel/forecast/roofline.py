"""Upper limits of a device on the rates of arithmetic and memory traffic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from windtunnel.families import Piece, registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Flop rates by number format, memory rate, size of the last cache, and shortest kernel."""

    flop_rates: Mapping[str, float]
    memory_rate: float
    cache_bytes: float
    fixed_seconds: float
    cores: int

    def seconds(self, piece: Piece) -> float:
        """The longer of arithmetic and memory traffic, plus the shortest time that any kernel takes."""
        return self.fixed_seconds + max(piece.flop / self.flop_rate(piece), piece.bytes / self.memory_rate)

    def least_seconds(self, piece: Piece) -> float:
        """The physical limit: the fewest possible flop at the full rate, and memory traffic for the bytes
        that no cache can hold."""
        rate = self.flop_rate(piece) / registry.of_kind(piece.kind).fewest_flop_share
        return max(piece.flop / rate, (piece.bytes - self.cache_bytes) / self.memory_rate, 0.0)

    def is_cached(self, piece: Piece) -> bool:
        """Whether memory traffic takes longer than arithmetic, but the last cache can hold its data."""
        return (
            piece.bytes < self.cache_bytes
            and piece.bytes / self.memory_rate > piece.flop / self.flop_rate(piece)
        )

    def flop_rate(self, piece: Piece) -> float:
        """The rate of the piece's number format if its family uses tensor cores, else of fp32."""
        dtype = piece.dtype if registry.of_kind(piece.kind).uses_tensor_cores else "fp32"
        return self.flop_rates.get(dtype) or self.flop_rates["fp32"]
