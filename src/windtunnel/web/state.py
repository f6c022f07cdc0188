"""What a link of the page holds: a job with settings, machines side by side, and a strategy.

A query string is read strictly; the same state always writes the same query string, by which answers are
kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from windtunnel import records, units
from windtunnel.errors import BadInput, UnknownName, WindtunnelError, nearest
from windtunnel.job.workload import Workload
from windtunnel.machine import machine as machines
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy
from windtunnel.web.allowed import AllowedJobs, read_settings

DEFAULT_JOB, DEFAULT_MACHINE = "resnet50", "h200"
MOST_MACHINES = 6
MOST_DEVICES = 16_384  # of one machine
MOST_BATCH = 2**20
MOST_TASKS = 4096  # micro-batches times stages: the schedule has a task for each op of each
_MOST_PAIRS = 64  # of a link
_FIELDS: Mapping[str, Any] = {field.name: field for field in dataclasses.fields(Strategy)}
_COUNT = r"[1-9]\d{0,5}"
_COUNTED = re.compile(rf"(?:(?P<nodes>{_COUNT})x)?(?P<devices>{_COUNT})x(?P<name>[a-z0-9.-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedMachine:
    """The name of a machine, taken apart: `4x8xh100` is 4 nodes of 8 devices of an h100."""

    name: str
    devices: int = 1
    nodes: int = 1

    @staticmethod
    def read(text: str) -> CountedMachine:
        """Only names of the catalogue are machines here: a file cannot be named."""
        known = (*machines.names(), *machines.node_names())
        if text in known:
            return CountedMachine(name=text)
        match = _COUNTED.fullmatch(text) if len(text) <= 60 else None
        if match is None or match["name"] not in known:
            raise UnknownName(
                f"No machine is called {text[:60]!r}.",
                hint=f"{nearest(text[:60], known)} Several devices: 8xh100, or 4x8xh100 for four nodes.",
            )
        found = CountedMachine(
            name=match["name"], devices=int(match["devices"]), nodes=int(match["nodes"] or 1)
        )
        if found.devices * found.nodes > MOST_DEVICES:
            raise BadInput(f"{text}: the page forecasts at most {MOST_DEVICES:,} devices.")
        return found

    def __str__(self) -> str:
        if self.nodes > 1:
            return f"{self.nodes}x{self.devices}x{self.name}"
        return f"{self.devices}x{self.name}" if self.devices > 1 else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """One state of the forecast page. `job` is a label of the allowed jobs."""

    job: str = DEFAULT_JOB
    settings: tuple[tuple[str, str], ...] = ()
    on: tuple[str, ...] = (DEFAULT_MACHINE,)
    strategy: Strategy = field(default_factory=Strategy)
    storage: str = ""

    def query(self) -> str:
        """The state as a query string; fields that have their default are left out."""
        pairs: list[tuple[str, str]] = [("job", self.job)]
        if self.settings:
            pairs.append(("settings", self.settings_text))
        pairs += [("on", name) for name in self.on]
        pairs += self.strategy_words().items()
        if self.storage:
            pairs.append(("storage", self.storage))
        return urlencode(pairs)

    @property
    def settings_text(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.settings)

    def strategy_words(self) -> dict[str, str]:
        """The fields of the strategy that were set, as a query string writes them."""
        return {
            name: _word(value)
            for name, own in _FIELDS.items()
            if (value := getattr(self.strategy, name)) != own.default
        }

    def changed(self, **fields: object) -> PageState:
        """This state with other values of its strategy."""
        return dataclasses.replace(self, strategy=dataclasses.replace(self.strategy, **fields))  # type: ignore[arg-type]

    def workload(self, allowed: AllowedJobs) -> Workload:
        """The job, opened where jobs live."""
        address = allowed.address(self.job)
        settings: dict[str, object] = dict(self.settings)
        if self.job in allowed.files:  # a user's function converts nothing, so it receives numbers as numbers
            settings = {key: units.literal(str(value)) for key, value in settings.items()}
        return Workload.named(address, **settings)

    def machines(self) -> list[Machine]:
        return [self._with_storage(Machine.named(name)) for name in self.on]

    def _with_storage(self, machine: Machine) -> Machine:
        if not self.storage:
            return machine
        from windtunnel.machine.building import shared_storage

        sources = {**machine.sources, "storage": "chosen on the page"}
        return dataclasses.replace(machine, storage=shared_storage(self.storage), sources=sources)


def read_state(pairs: Iterable[tuple[str, str]], allowed: AllowedJobs) -> PageState:
    """The state that the parameters of a request name; an error names the first that is wrong."""
    values: dict[str, list[str]] = {}
    for key, value in pairs:
        if value:
            values.setdefault(key, []).append(value)
    _refuse_unknown(values)
    job = _one(values, "job", DEFAULT_JOB)
    allowed.address(job)
    storage = _one(values, "storage", "")
    if storage and storage not in storages():
        raise UnknownName(f"No storage is called {storage[:60]!r}.", hint=nearest(storage[:60], storages()))
    return PageState(
        job=job,
        settings=read_settings(_one(values, "settings", ""), job),
        on=_machines(values.get("on", [DEFAULT_MACHINE])),
        strategy=_strategy({key: _one(values, key, "") for key in values if key in _FIELDS}),
        storage=storage,
    )


def read_what_is_right(pairs: Iterable[tuple[str, str]], allowed: AllowedJobs) -> PageState:
    """The state of a link without what is wrong in it, so that the form keeps all the rest."""
    right: list[tuple[str, str]] = []
    found = PageState()
    for pair in list(pairs)[:_MOST_PAIRS]:
        with contextlib.suppress(WindtunnelError):
            found = read_state([*right, pair], allowed)
            right.append(pair)
    return found


def storages() -> list[str]:
    """The storage of the catalogue, by name."""
    return list(records.load(machines.CATALOG / "storage.toml"))


def _refuse_unknown(values: Mapping[str, Sequence[str]]) -> None:
    known = {"job", "settings", "on", "storage", *_FIELDS}
    for key in values:
        if key not in known:
            raise BadInput(f"The page has no field {key[:40]!r}.", hint=nearest(key[:40], known))


def _one(values: Mapping[str, Sequence[str]], key: str, default: str) -> str:
    found = values.get(key, [default])
    if len(found) > 1:
        raise BadInput(f"{key} is given {len(found)} times.", hint="Give it once.")
    return found[0]


def _machines(names: Sequence[str]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(str(CountedMachine.read(name)) for name in names))
    if len(found) > MOST_MACHINES:
        raise BadInput(
            f"{len(found)} machines are too many to stand side by side.", hint=f"At most {MOST_MACHINES}."
        )
    return found


def _strategy(values: Mapping[str, str]) -> Strategy:
    strategy = Strategy.read(values)
    if strategy.batch is not None and strategy.batch > MOST_BATCH:
        raise BadInput(f"The page forecasts batches up to {MOST_BATCH:,}, not {strategy.batch:,}.")
    tasks = strategy.accumulate * strategy.pipeline_parallel * strategy.virtual_stages
    if tasks > MOST_TASKS:
        raise BadInput(
            f"{strategy.accumulate:,} micro-batches in {strategy.pipeline_parallel:,} stages are too much "
            "work for the page.",
            hint="Use fewer of them here, or windtunnel predict on the command line.",
        )
    return strategy


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
