"""The named networks, one file each. Each file has a frozen `Settings` and `build(settings) -> Workload`.

Listing them imports no framework; only the file of the network asked for is loaded.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windtunnel import records
from windtunnel.errors import UnknownName, nearest
from windtunnel.workload import Origin, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What a network is for, in a line each; `module` holds its settings and builder."""

    name: str
    title: str
    purpose: str
    source: str

    @property
    def module(self) -> Any:
        return importlib.import_module(f"windtunnel.networks.{self.name}")

    @property
    def settings(self) -> type[Any]:
        kind: type[Any] = self.module.Settings
        return kind


_ALL = (
    Network(
        name="rnn",
        title="vanilla recurrent network, sequence to sequence",
        purpose="signals that change over time, where each output depends on what came before",
        source="Brandfonbrener 2017, section 2.1",
    ),
    Network(
        name="fcn5",
        title="fully connected network 26752-2048-2048-2048-26752",
        purpose="the network of the guide's Table I: how CPU threads change the time of a mini-batch",
        source="Wuensche 2018, Table I; layer sizes from Shi et al. 2016",
    ),
)
_BY_NAME = {network.name: network for network in _ALL}


def names() -> tuple[str, ...]:
    """All named networks, in the guide's order."""
    return tuple(_BY_NAME)


def named(name: str) -> Network:
    """One network of the list."""
    if name not in _BY_NAME:
        raise UnknownName(f"No job is called {name!r}.", hint=f"{nearest(name, _BY_NAME)} See: windtunnel network list; or give path/to/file.py:function")
    return _BY_NAME[name]


def workload(name: str, settings: Mapping[str, Any]) -> Workload:
    """The named network with these settings, as a job that any process can build again."""
    network = named(name)
    chosen = records.read(network.settings, settings, f"job {name}")
    job: Workload = network.module.build(chosen)
    return dataclasses.replace(job, origin=Origin(job=name, settings=dict(settings)))
