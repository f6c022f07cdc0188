"""Which settings of a job are its sizes: depth, width, length of an example, side of an image.

Networks state theirs in `catalog/sizes.toml`. Language models and networks of libraries have settings of
known names; the functions of users have those of their parameters that are numbers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from windtunnel import networks, records
from windtunnel.errors import WindtunnelError
from windtunnel.influence.base import CannotVary
from windtunnel.job.workload import Workload, load_function
from windtunnel.machine.machine import CATALOG
from windtunnel.records import Plain

Role = Literal["depth", "width", "length", "image"]
ROLES: tuple[Role, ...] = ("depth", "width", "length", "image")
Form = Literal["numbers", "layers", "all layers", "levels"]
_NEAR = 32  # how far from a half or a double a value may be that the network accepts
# Parameters of users' functions that are sizes, by the names that PyTorch and papers use.
_USUAL_NAMES: Mapping[Role, tuple[str, ...]] = {
    "depth": ("layers", "n_layers", "num_layers", "depth", "blocks", "n_blocks", "num_hidden_layers"),
    "width": (
        *("width", "hidden", "n_hidden", "hidden_size", "n_rec", "d_model", "dim", "channels", "features"),
        *("nodes", "units", "inner"),
    ),
    "length": ("length", "seq_len", "sequence_length", "n_steps", "timesteps", "steps", "tokens", "context"),
    "image": ("image", "image_size", "size", "resolution", "pixels"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRule:
    """One size of a network, as the catalogue states it."""

    settings: tuple[str, ...]
    of: Form = "numbers"
    value: str = ""
    default: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A size of one job. `scaled(factor)` gives the settings of a larger or smaller one, and its label."""

    role: Role
    label: str
    scaled: Callable[[float], tuple[str, Plain]]


@functools.cache
def table() -> Mapping[str, Plain]:
    """The catalogue's table, by network."""
    return records.load(CATALOG / "sizes.toml")


def networks_of_task(name: str) -> tuple[str, ...]:
    """Built-in networks that can replace this one, itself among them."""
    task = table()[name]["task"]
    return tuple(other for other in networks.names() if table()[other]["task"] == task)


def size_of(job: Workload, role: Role) -> Size | CannotVary:
    """The size of a job, or the reason why it has none that can be varied."""
    if job.origin is None:
        return CannotVary(name=role, reason=f"{job.name} was made in Python, so its settings are not known")
    name, settings = job.origin.job, job.origin.settings
    if name in networks.names():
        return _network_size(name, settings, role)
    library, _, kind = name.partition(":")
    if library == "llm":
        return _language_size(kind, settings, role)
    if library in ("torchvision", "timm"):
        return _image_size(job, role)
    if library == "transformers":
        return _transformer_size(kind, settings, role)
    return _user_size(name, settings, role)


def user_numbers(job: Workload) -> dict[str, float]:
    """Numeric parameters of a user's function that are not known as sizes, with their values."""
    if job.origin is None or ".py" not in job.origin.job:
        return {}
    usual = {name for names in _USUAL_NAMES.values() for name in names}
    numbers = _parameters(job.origin.job, job.origin.settings)
    return {name: value for name, value in numbers.items() if name not in usual}


def _network_size(name: str, settings: Plain | Mapping[str, object], role: Role) -> Size | CannotVary:
    stated = table()[name][role]
    if isinstance(stated, str):
        return CannotVary(name=role, reason=f"{name}: {stated}")
    rule = records.read(SizeRule, stated, f"sizes.toml: {name}: {role}")
    kind = networks.named(name).settings
    chosen = records.read(kind, settings, f"job {name}")
    value = _value(chosen, rule)

    def accepts(changes: Plain) -> bool:
        try:
            records.read(kind, {**settings, **changes}, f"job {name}")
        except WindtunnelError:
            return False
        return True

    def scaled(factor: float) -> tuple[str, Plain]:
        return _scaled(rule, chosen, value, (role, factor), accepts)

    return Size(role=role, label=_label(value, rule.of), scaled=scaled)


def _value(chosen: Any, rule: SizeRule) -> Any:
    """The value of the first setting; where it is not set, the one that the network takes."""
    value = getattr(chosen, rule.settings[0])
    for name in rule.value.split(".") if value is None and rule.value else ():
        value = getattr(chosen if value is None else value, name)
    return rule.default if value is None else value


def _scaled(
    rule: SizeRule,
    chosen: Any,
    value: Any,
    change: tuple[Role, float],
    accepts: Callable[[Plain], bool],
) -> tuple[str, Plain]:
    """The settings of a size that is `factor` as large: the nearest that the network accepts."""
    factor = change[1]
    if rule.of in ("layers", "all layers"):
        return _scaled_layers(rule, list(value), change, accepts)
    if rule.of == "levels":
        levels = max(1, value + (1 if factor > 1 else -1))
        return str(levels), {rule.settings[0]: levels}
    goal = max(1, round(value * factor))
    others = {name: getattr(chosen, name) for name in rule.settings[1:]}
    for distance in range(_NEAR + 1):
        for near in (goal + distance, goal - distance):
            ratio = near / value
            changes = {rule.settings[0]: near}
            changes |= {name: max(1, round((other or value) * ratio)) for name, other in others.items()}
            if near >= 1 and accepts(changes):
                return str(near), changes
    return str(goal), {rule.settings[0]: goal}


def _scaled_layers(
    rule: SizeRule, value: list[int], change: tuple[Role, float], accepts: Callable[[Plain], bool]
) -> tuple[str, Plain]:
    """Other widths of hidden layers; or more or fewer of them (the last one repeated), as many as are
    accepted."""
    role, factor = change
    first, hidden, last = ([], value, []) if rule.of == "layers" else (value[:1], value[1:-1], value[-1:])
    if role == "width":
        layers = [*first, *(max(1, round(width * factor)) for width in hidden), *last]
        return _label(layers, rule.of), {rule.settings[0]: tuple(layers)}
    count = max(1, round(len(hidden) * factor))
    while True:
        layers = [*first, *(hidden + hidden[-1:] * count)[:count], *last]
        changes: Plain = {rule.settings[0]: tuple(layers)}
        if count <= len(hidden) or accepts(changes):
            return _label(layers, rule.of), changes
        count -= 1


def _label(value: object, form: Form) -> str:
    """A number, or hidden layers as "3 x 2048"."""
    if not isinstance(value, (list, tuple)):
        return str(value)
    hidden = list(value) if form == "layers" else list(value[1:-1])
    return f"{len(hidden)} x {hidden[0]}" if len(set(hidden)) == 1 else "-".join(map(str, hidden))


def _numbers(role: Role, values: Mapping[str, int], multiple: int = 1) -> Size:
    """A size of settings that are plain numbers and change together."""
    first = next(iter(values.values()))

    def scaled(factor: float) -> tuple[str, Plain]:
        changed = {name: max(1, round(value * factor)) for name, value in values.items()}
        if multiple > 1:
            changed = {name: max(multiple, value - value % multiple) for name, value in changed.items()}
        return str(next(iter(changed.values()))), changed

    return Size(role=role, label=str(first), scaled=scaled)


def _language_size(kind: str, settings: Mapping[str, object], role: Role) -> Size | CannotVary:
    from windtunnel.job.language import KINDS, LanguageSettings

    chosen = records.read(LanguageSettings, {**KINDS[kind], **settings}, f"job llm:{kind}")
    if role == "image":
        return CannotVary(name=role, reason="a language model reads no images")
    if role != "width":
        return _numbers(role, {"layers" if role == "depth" else "length": _of(chosen, role)})
    inner = {} if chosen.inner is None else {"inner": chosen.inner}
    return _numbers(role, {"width": chosen.width, **inner}, chosen.heads)


def _of(chosen: Any, role: Role) -> int:
    return int(chosen.layers if role == "depth" else chosen.length)


def _image_size(job: Workload, role: Role) -> Size | CannotVary:
    if role != "image":
        reason = f"{job.name} has no setting for its {role}: the library fixes it"
        return CannotVary(name=role, reason=reason)
    side = int(job.batch(1)[0].shape[-1])
    return _numbers(role, {"image": side}, 32)


def _transformer_size(kind: str, settings: Mapping[str, object], role: Role) -> Size | CannotVary:
    import transformers

    if role == "image":
        return CannotVary(name=role, reason="a network for text reads no images")
    config = transformers.AutoConfig.for_model(kind)
    names = {
        "depth": {"layers": "num_hidden_layers"},
        "width": {"hidden": "hidden_size", "intermediate_size": "intermediate_size"},
        "length": {"length": ""},
    }[role]
    values = {}
    for name, field in names.items():
        given = settings.get(name) or settings.get(field) or (getattr(config, field, None) if field else 128)
        if given is not None:
            values[name] = int(str(given))
    if not values or (role == "width" and "hidden" not in values):
        return CannotVary(name=role, reason=f"the configuration of {kind} names no {role}")
    heads = getattr(config, "num_attention_heads", 1) if role == "width" else 1
    return _numbers(role, values, int(heads))


def _user_size(address: str, settings: Mapping[str, object], role: Role) -> Size | CannotVary:
    numbers = {
        name: int(value)
        for name, value in _parameters(address, settings).items()
        if name in _USUAL_NAMES[role] and float(value).is_integer()
    }
    if not numbers:
        usual = ", ".join(_USUAL_NAMES[role][:4])
        function = address.rpartition(":")[2]
        reason = f"{function}() has no whole number parameter that is called {usual} or the like"
        return CannotVary(name=role, reason=reason)
    return _numbers(role, numbers)


def _parameters(address: str, settings: Mapping[str, object]) -> dict[str, float]:
    """The parameters of a user's function that are numbers above 0: as given, else their defaults."""
    path, _, _ = address.rpartition(":")
    if not Path(path).is_file():
        return {}
    signature = inspect.signature(load_function(address))
    found = {}
    for name, parameter in signature.parameters.items():
        value = settings.get(name, parameter.default)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            found[name] = value
    return found
