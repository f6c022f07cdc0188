"""Fly your training run before you build it.

Three nouns in (`Workload`, `Machine`, `Strategy`), one kind of answer out (`Forecast`, `Measurement`). Importing this loads
no framework; a verb loads what it needs when it is called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windtunnel.errors import (
        BadInput,
        DoesNotFit,
        Interrupted,
        MeasurementFailed,
        StoreError,
        Unavailable,
        WindtunnelError,
    )
    from windtunnel.forecast.forecast import Forecast
    from windtunnel.fused.module import FusedRNN
    from windtunnel.job.workload import Workload
    from windtunnel.machine.machine import Machine
    from windtunnel.measurement.measure import Measurement, measure
    from windtunnel.measurement.steady import Protocol
    from windtunnel.measurement.store import Store
    from windtunnel.prediction import largest_batch, predict
    from windtunnel.strategy import Strategy

__version__ = "0.1.0"
_HOMES = {
    "BadInput": "errors",
    "DoesNotFit": "errors",
    "Forecast": "forecast.forecast",
    "FusedRNN": "fused.module",
    "Interrupted": "errors",
    "Machine": "machine.machine",
    "Measurement": "measurement.measure",
    "MeasurementFailed": "errors",
    "Protocol": "measurement.steady",
    "Store": "measurement.store",
    "StoreError": "errors",
    "Strategy": "strategy",
    "Unavailable": "errors",
    "WindtunnelError": "errors",
    "Workload": "job.workload",
    "largest_batch": "prediction",
    "measure": "measurement.measure",
    "predict": "prediction",
}
__all__ = [
    "BadInput",
    "DoesNotFit",
    "Forecast",
    "FusedRNN",
    "Interrupted",
    "Machine",
    "Measurement",
    "MeasurementFailed",
    "Protocol",
    "Store",
    "StoreError",
    "Strategy",
    "Unavailable",
    "WindtunnelError",
    "Workload",
    "largest_batch",
    "measure",
    "predict",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'windtunnel' has no attribute {name!r}")
    return getattr(importlib.import_module(f"windtunnel.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
