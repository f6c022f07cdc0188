"""Fly your training run before you build it.

Three inputs (`Workload`, `Machine`, `Strategy`), one kind of answer (`Forecast` or `Measurement`). Importing
this loads no framework; a function loads what it needs when it is called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel import fused, units
    from windtunnel.accuracy.validation import Validation, validate
    from windtunnel.advice.engine import AdviceOptions, advise
    from windtunnel.advice.result import Advice
    from windtunnel.errors import (
        BadInput,
        DoesNotFit,
        Interrupted,
        MeasurementFailed,
        StoreError,
        Unavailable,
        WindtunnelError,
    )
    from windtunnel.feed.remedies import compare_remedies
    from windtunnel.forecast.forecast import Forecast
    from windtunnel.fused.module import FusedRNN
    from windtunnel.influence.result import Influence
    from windtunnel.influence.survey import FactorOptions, factors
    from windtunnel.job.stored import StoredData
    from windtunnel.job.workload import Workload
    from windtunnel.learning.data import load as load_data
    from windtunnel.learning.options import TrainingOptions
    from windtunnel.learning.result import TrainingResult
    from windtunnel.learning.training import train
    from windtunnel.machine.machine import Machine
    from windtunnel.measurement.compare import CompareOptions, PairedComparison, compare
    from windtunnel.measurement.measure import Measurement, measure
    from windtunnel.measurement.steady import Protocol
    from windtunnel.measurement.store import Store
    from windtunnel.planning.goal import PlanChoices, PlanGoal
    from windtunnel.planning.plan import plan
    from windtunnel.planning.table import PlanTable
    from windtunnel.prediction import largest_batch, predict
    from windtunnel.reports.forecast.document import write_report
    from windtunnel.reports.study import StudyReport
    from windtunnel.strategy import Strategy
    from windtunnel.study.crossover.crossing import Crossover
    from windtunnel.study.crossover.search import crossover
    from windtunnel.study.study import Study

__version__ = "0.1.0"
# Where each public name is defined; "module:name" where it has another name there.
_HOMES = {
    "Advice": "advice.result",
    "AdviceOptions": "advice.engine",
    "BadInput": "errors",
    "CompareOptions": "measurement.compare",
    "Crossover": "study.crossover.crossing",
    "DoesNotFit": "errors",
    "FactorOptions": "influence.survey",
    "Forecast": "forecast.forecast",
    "FusedRNN": "fused.module",
    "Influence": "influence.result",
    "Interrupted": "errors",
    "Machine": "machine.machine",
    "Measurement": "measurement.measure",
    "MeasurementFailed": "errors",
    "PairedComparison": "measurement.compare",
    "PlanChoices": "planning.goal",
    "PlanGoal": "planning.goal",
    "PlanTable": "planning.table",
    "Protocol": "measurement.steady",
    "Store": "measurement.store",
    "StoreError": "errors",
    "StoredData": "job.stored",
    "Strategy": "strategy",
    "Study": "study.study",
    "StudyReport": "reports.study",
    "TrainingOptions": "learning.options",
    "TrainingResult": "learning.result",
    "Unavailable": "errors",
    "Validation": "accuracy.validation",
    "WindtunnelError": "errors",
    "Workload": "job.workload",
    "advise": "advice.engine",
    "compare": "measurement.compare",
    "compare_remedies": "feed.remedies",
    "crossover": "study.crossover.search",
    "factors": "influence.survey",
    "largest_batch": "prediction",
    "load_data": "learning.data:load",
    "measure": "measurement.measure",
    "plan": "planning.plan",
    "predict": "prediction",
    "train": "learning.training",
    "validate": "accuracy.validation",
    "write_report": "reports.forecast.document",
}
__all__ = [
    "Advice",
    "AdviceOptions",
    "BadInput",
    "CompareOptions",
    "Crossover",
    "DoesNotFit",
    "FactorOptions",
    "Forecast",
    "FusedRNN",
    "Influence",
    "Interrupted",
    "Machine",
    "Measurement",
    "MeasurementFailed",
    "PairedComparison",
    "PlanChoices",
    "PlanGoal",
    "PlanTable",
    "Protocol",
    "Store",
    "StoreError",
    "StoredData",
    "Strategy",
    "Study",
    "StudyReport",
    "TrainingOptions",
    "TrainingResult",
    "Unavailable",
    "Validation",
    "WindtunnelError",
    "Workload",
    "advise",
    "compare",
    "compare_remedies",
    "crossover",
    "factors",
    "fused",
    "largest_batch",
    "load_data",
    "measure",
    "plan",
    "predict",
    "train",
    "units",
    "validate",
    "write_report",
]


def __getattr__(name: str) -> object:
    if name in ("fused", "units"):
        return importlib.import_module(f"windtunnel.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'windtunnel' has no attribute {name!r}")
    module, _, alias = _HOMES[name].partition(":")
    return getattr(importlib.import_module(f"windtunnel.{module}"), alias or name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
