"""The forecast page: a form that describes job, machines and strategy, and the place of the answer."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from windtunnel import networks, strategy
from windtunnel.foreign import shown
from windtunnel.machine import machine as machines
from windtunnel.machine.machine import Machine
from windtunnel.records import Plain
from windtunnel.reports.page import Markup
from windtunnel.web.allowed import AllowedJobs
from windtunnel.web.layout import templates
from windtunnel.web.state import MOST_BATCH, CountedMachine, PageState, storages

_MOST_STOP = 17  # the batch slider ends at 2**17
_MOST_COUNT = 10  # the slider of devices ends at 2**10
_NODE = 8  # devices of a node beyond which further nodes are counted
_EXAMPLES = ("torchvision:resnet50", "timm:vit_base_patch16_224", "transformers:bert", "llm:llama")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChoice:
    """A field of the strategy with its values. An empty value leaves the default."""

    name: str
    label: str
    values: Sequence[tuple[str, str]]
    value: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineRow:
    """One machine of the form: its name in the catalogue, how many devices, and where the slider stands."""

    name: str
    base: str
    devices: int
    stop: int
    is_counted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the page that is asked for by a click, since it takes longer."""

    name: str
    title: str
    short: str
    says: str
    button: str


PARTS = (
    Part(
        name="advice",
        title="Advice",
        short="Make it faster",
        says="What to change, what each change gains, and why. Each one can be applied with a click.",
        button="Find advice",
    ),
    Part(
        name="scaling",
        title="More devices",
        short="More devices",
        says="How throughput grows with the number of devices.",
        button="Draw the scaling curve",
    ),
    Part(
        name="feed",
        title="Data feed",
        short="Data feed",
        says="How well storage, decoding and copies keep the device busy, and what would help.",
        button="Examine the feed",
    ),
    Part(
        name="factors",
        title="Factors",
        short="What matters most",
        says="Which choice matters most: network, sizes, batch, precision, device and more, one by one.",
        button="Rank the factors",
    ),
)


class Forms:
    """The form for a state. The lists of machines and jobs are made once."""

    def __init__(self, allowed: AllowedJobs) -> None:
        self.allowed = allowed

    def form(self, state: PageState, batch: int | None, typed: Mapping[str, str] | None = None) -> Markup:
        """`batch`: what the forecast took where the state sets none. `typed`: job and settings of a link that
        were refused, so that they can be mended."""
        typed = {key: shown(text) for key, text in (typed or {}).items()}
        chosen = state.strategy.batch or batch
        template = templates().get_template("form.html")
        return Markup(
            template.render(
                state=state,
                job=typed.get("job", state.job),
                settings=typed.get("settings", state.settings_text),
                jobs=self._jobs(),
                examples=_EXAMPLES,
                machines=[machine_row(name) for name in state.on],
                known=machine_groups(),
                batch=chosen,
                batch_stop=None if chosen is None else round(math.log2(chosen)),
                most_stop=_MOST_STOP,
                most_count=_MOST_COUNT,
                most_batch=MOST_BATCH,
                main=_main_choices(state),
                groups=_more_choices(state),
                storages=storages(),
            )
        )

    def _jobs(self) -> list[tuple[str, list[tuple[str, str]]]]:
        kinds: dict[str, list[tuple[str, str]]] = {}
        if self.allowed.files:
            kinds["Your own"] = [(label, label) for label in self.allowed.files]
        titles = {"landmark": "Landmark networks", "deep": "Deep networks", "shallow": "Shallow networks"}
        for kind, title in titles.items():
            entries = [networks.named(name) for name in networks.names()]
            kinds[title] = [(e.name, f"{e.name} - {e.title}") for e in entries if e.kind == kind]
        return list(kinds.items())


def body(form: Markup, answer: Markup, state: PageState | None) -> Markup:
    """The form, the place of the answer, and the parts that are asked for by a click."""
    template = templates().get_template("forecast.html")
    query = state.query() if state else ""
    return Markup(template.render(form=form, answer=answer, parts=PARTS if state else (), query=query))


def machine_row(name: str) -> MachineRow:
    counted = CountedMachine.read(name)
    machine = Machine.named(name)
    total = machine.devices * machine.nodes
    is_counted = counted.name in machines.names() and machine.device.kind == "gpu"
    return MachineRow(
        name=name,
        base=counted.name,
        devices=total,
        stop=min(_MOST_COUNT, round(math.log2(total))),
        is_counted=is_counted,
    )


def counted_name(base: str, devices: int) -> str:
    """So many devices of a GPU: in one node up to eight, then in nodes of eight. The script does the same."""
    if devices <= _NODE:
        return str(CountedMachine(name=base, devices=devices))
    return str(CountedMachine(name=base, devices=_NODE, nodes=devices // _NODE))


@functools.cache
def machine_groups() -> list[tuple[str, list[tuple[str, str]]]]:
    """All machines of the catalogue in groups, with their titles."""
    groups: dict[str, list[tuple[str, str]]] = {"GPUs": [], "CPUs": []}
    for name in machines.names():
        machine = Machine.named(name)
        group = "GPUs" if machine.device.kind == "gpu" else "CPUs"
        groups[group].append((name, f"{name} - {machine.title}"))
    groups["Nodes"] = [(name, f"{name} - {Machine.named(name).title}") for name in machines.node_names()]
    return list(groups.items())


def next_states(state: PageState, facts: Plain) -> Iterator[PageState]:
    """States that a slider or a common choice may ask for next; their traces are recorded ahead.

    Batches are powers of two around the present one; devices share it, so that a number of devices is a batch
    of each. The other number format and the other kind of device are one trace each.
    """
    batch = state.strategy.batch or int(facts.get("batch") or 0)
    if not batch or state.strategy.compiles:  # a compiled step takes a minute to trace
        return
    plain = state.changed(batch=batch)
    for step in (1, -1, 2, -2, 3, -3, 4, -4, 5):
        other = batch * 2**step if step > 0 else batch // 2**-step
        fits = other >= 1 and other <= MOST_BATCH and (step > 0 or batch % 2**-step == 0)
        if fits and other % state.strategy.accumulate == 0:
            yield plain.changed(batch=other)
    first = CountedMachine.read(state.on[0])
    if first.nodes == 1 and first.name in machines.names() and not facts.get("cpu"):
        for devices in (2, 4, 8):
            if batch % devices == 0:
                yield dataclasses.replace(plain, on=(counted_name(first.name, devices),))
    if state.strategy.precision != "bf16":
        yield plain.changed(precision="bf16")


def _values(kind: object, words: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(str(value), words.get(str(value), str(value))) for value in get_args(kind) if value is not None]


def _main_choices(state: PageState) -> list[FieldChoice]:
    fields = state.strategy_words()
    precision = {
        "pytorch": "PyTorch's default",
        "fp32": "fp32 (strict)",
        "tf32": "tf32",
        "bf16": "bf16 (autocast)",
        "fp16": "fp16 (autocast)",
    }
    execution = {
        "eager": "eager, op by op",
        "graph": "CUDA graph",
        "compiled": "torch.compile",
        "reduce-overhead": "torch.compile with graphs",
    }
    return [
        _choice(fields, "precision", "Precision", _values(strategy.Precision, precision)),
        _choice(
            fields,
            "execution",
            "Execution",
            _values(strategy.Execution, execution),
            "torch.compile is traced by PyTorch's compiler: the first time takes up to a minute.",
        ),
    ]


def _choice(
    fields: Mapping[str, str], name: str, label: str, values: list[tuple[str, str]], hint: str = ""
) -> FieldChoice:
    """The first value is the default, which a link leaves out."""
    (_, first), *rest = values
    return FieldChoice(
        name=name, label=label, values=[("", first), *rest], value=fields.get(name, ""), hint=hint
    )


def _more_choices(state: PageState) -> list[tuple[str, list[FieldChoice]]]:
    """Further fields of the strategy, in groups."""
    fields = state.strategy_words()

    def choose(name: str, label: str, kind: object, hint: str = "", unset: str = "") -> FieldChoice:
        values = _values(kind, {})
        return _choice(fields, name, label, [("", unset), *values] if unset else values, hint)

    def flag(name: str, label: str, hint: str = "") -> FieldChoice:
        return _choice(fields, name, label, [("", "no"), ("true", "yes")], hint)

    def number(name: str, label: str, hint: str = "") -> FieldChoice:
        return FieldChoice(name=name, label=label, values=(), value=fields.get(name, ""), hint=hint)

    own, data = "the job's own", {"resident": "in device memory", "streamed": "in host memory"}
    data |= {"page-cache": "in files, cached by the host", "storage": "in files on storage"}
    return [
        (
            "Step",
            [
                choose("optimizer", "Optimizer", strategy.Optimizer, unset=own),
                choose("layout", "Layout", strategy.Layout, "for images and convolutions", unset=own),
                number("accumulate", "Micro-batches", "their gradients are added before the update"),
                choose("recompute", "Recompute", strategy.Recompute, "saves memory, costs time"),
                flag("inference", "Inference only"),
                flag("expandable_segments", "Expandable segments", "less fragmentation on a GPU"),
                number("threads", "CPU threads", "default: one for each core"),
            ],
        ),
        (
            "Data",
            [
                _choice(fields, "data", "Data lies", _values(strategy.Data, data)),
                number("prefetch", "Prefetch", "batches copied ahead"),
                number("loaders", "Loaders", "processes that read and decode"),
                _choice(
                    fields,
                    "pinned",
                    "Pinned memory",
                    [("", "with prefetch"), ("true", "yes"), ("false", "no")],
                ),
                flag("direct", "GPUDirect storage"),
            ],
        ),
        (
            "Several devices",
            [
                number("data_parallel", "Data parallel", "default: all devices that are left"),
                number("tensor_parallel", "Tensor parallel"),
                number("pipeline_parallel", "Pipeline stages"),
                choose("pipeline_schedule", "Pipeline schedule", strategy.PipelineSchedule),
                number("virtual_stages", "Virtual stages"),
                choose("shard", "Shard", strategy.Shard, "what workers divide: weights is FSDP"),
                choose("exchange", "Exchange", strategy.Exchange),
                flag("sequence_parallel", "Sequence parallel"),
                number("expert_parallel", "Expert parallel"),
            ],
        ),
    ]
