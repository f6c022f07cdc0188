"""The choice of the network: others that do the same task."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from windtunnel import networks
from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant
from windtunnel.influence.factors._sizes import unchanged
from windtunnel.influence.setup import VariedSetup
from windtunnel.influence.sizes import networks_of_task
from windtunnel.job.workload import Workload

# Settings that describe the examples, not the network: other networks for them get the same ones.
_OF_THE_DATA = ("size", "channels", "classes", "inputs", "length", "alphabet")


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    name = base.job.origin.job if base.job.origin else ""
    if name not in networks.names():
        reason = f"which networks could replace {base.job.name} is known of built-in networks only"
        return [CannotVary(name="network", reason=reason)]
    others = [other for other in networks_of_task(name) if other != name]
    if not others:
        return [CannotVary(name="network", reason=f"no other built-in network does the task of {name}")]
    own = Variant(label=name, change=unchanged, is_base=True)
    variants = (own, *(Variant(label=other, change=_replaced_by(other)) for other in others))
    return [FactorRange(name="network", variants=variants)]


def _replaced_by(name: str) -> Callable[[VariedSetup], VariedSetup]:
    """The same examples and the same batch in another network."""

    def change(setup: VariedSetup) -> VariedSetup:
        assert setup.job.origin is not None
        allowed = {field.name for field in dataclasses.fields(networks.named(name).settings)}
        kept = {
            key: value
            for key, value in setup.job.origin.settings.items()
            if key in allowed and key in _OF_THE_DATA
        }
        job = dataclasses.replace(Workload.named(name, **kept), data=setup.job.data)
        strategy = dataclasses.replace(setup.strategy, batch=setup.batch)
        return dataclasses.replace(setup, job=job, strategy=strategy)

    return change


FACTOR = InfluenceFactor(
    name="network", group="network", what="networks that do the same task", vary=_vary, learns=True
)
