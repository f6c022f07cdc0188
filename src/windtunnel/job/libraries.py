"""Networks of public model libraries as jobs, by address: `torchvision:resnet34`, `timm:mixer_s16_224`, `transformers:gpt2`.

Weights are made here and never fetched. Where a setting is not given, the library's own size holds.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel import records
from windtunnel.errors import BadJob, BadRecord, Unavailable, UnknownName, nearest
from windtunnel.job.workload import Origin, Workload

if TYPE_CHECKING:
    import torch

LIBRARIES = ("torchvision", "timm", "transformers")
_AUXILIARY_WEIGHT = 0.3  # of further classifiers half-way up, as GoogLeNet's authors have it
_TEXT_LENGTH = 128
_MASKED_SHARE = 0.15
_IGNORED = -100  # the label that every library leaves out of the loss
# Our words for what nearly every configuration has; a configuration maps these names to its own.
_ALIASES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "vocabulary": "vocab_size",
}
_TASKS = {
    "causal": ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    "masked": ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    "classify": ("AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES"),
    "translate": ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings:
    """`image`: pixels a side, the library's own for this network where it is not given."""

    image: int | None = None
    classes: int = 1000
    channels: int = 3
    rate: float = 0.01

    def __post_init__(self) -> None:
        _require_positive(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSettings:
    """`length`: tokens in a sequence; `task`: what is learned (causal, masked, classify, translate), the network's usual one else.

    Every other setting goes to the library's configuration.
    """

    length: int = _TEXT_LENGTH
    task: str | None = None
    rate: float = 1e-4

    def __post_init__(self) -> None:
        _require_positive(self)
        if self.task is not None and self.task not in _TASKS:
            raise BadRecord(f"task cannot be {self.task!r}.", hint=nearest(self.task, _TASKS))


def is_address(name: str) -> bool:
    """Whether a job's name begins with a library's."""
    return name.partition(":")[0] in LIBRARIES and ":" in name


def workload(address: str, settings: Mapping[str, Any]) -> Workload:
    """The library's network as a job that any process can build again."""
    library, _, name = address.partition(":")
    build = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}[library]
    job = build(name, settings, f"job {address}")
    return dataclasses.replace(job, name=address, origin=Origin(job=address, settings=dict(settings)))


def _torchvision(name: str, settings: Mapping[str, Any], where: str) -> Workload:
    models = _load("torchvision").models
    known = models.list_models(module=models)
    _require_known(name, known, where)
    chosen = records.read(ImageSettings, settings, where)
    if chosen.channels != 3:
        raise BadRecord(
            f"{where}: channels must be 3, not {chosen.channels}: torchvision's networks read colour images only."
        )
    usual = int(getattr(models.get_model_weights(name).DEFAULT.transforms(), "crop_size", [224])[0])
    image = chosen.image or usual
    sized = (
        {"image_size": image}
        if name.startswith("vit_")
        else {"input_size": (image, image)}
        if name.startswith("maxvit")
        else {}
    )
    return _image_job(
        lambda: models.get_model(name, weights=None, num_classes=chosen.classes, **sized), chosen, image
    )


def _timm(name: str, settings: Mapping[str, Any], where: str) -> Workload:
    timm = _load("timm")
    _require_known(name, timm.list_models(), where)
    chosen = records.read(ImageSettings, settings, where)
    usual = int(timm.get_pretrained_cfg(name).input_size[-1])
    image = chosen.image or usual

    def model() -> torch.nn.Module:
        given: dict[str, Any] = {
            "pretrained": False,
            "num_classes": chosen.classes,
            "in_chans": chosen.channels,
        }
        if image == usual:
            return timm.create_model(name, **given)  # type: ignore[no-any-return]
        try:
            return timm.create_model(name, **given, img_size=image)  # type: ignore[no-any-return]
        except TypeError:  # a convolutional network takes images of any size, so it has no such setting
            return timm.create_model(name, **given)  # type: ignore[no-any-return]

    return _image_job(model, chosen, image)


def _image_job(model: Callable[[], Any], settings: ImageSettings, image: int) -> Workload:
    import torch

    def batch(n: int) -> tuple[Any, Any]:
        return torch.rand(n, settings.channels, image, image), torch.randint(0, settings.classes, (n,))

    def build() -> torch.nn.Module:
        with warnings.catch_warnings():  # torchvision announces how it will draw weights one day
            warnings.simplefilter("ignore", FutureWarning)
            network: torch.nn.Module = model()
        return network.train()

    return Workload(
        name="image",
        model=build,
        batch=batch,
        loss=_image_loss,
        optimizer=lambda params: _momentum(params, settings.rate),
        default_batch=32,
    )


def _image_loss(model: Any, batch: tuple[Any, Any]) -> torch.Tensor:
    from torch.nn.functional import cross_entropy

    images, labels = batch
    scores = model(images)
    if not isinstance(scores, tuple):
        return cross_entropy(scores, labels)
    main, *others = (part for part in scores if part is not None)
    return cross_entropy(main, labels) + _AUXILIARY_WEIGHT * sum(
        cross_entropy(other, labels) for other in others
    )


def _momentum(params: Iterable[Any], rate: float) -> torch.optim.Optimizer:
    import torch

    return torch.optim.SGD(params, lr=rate, momentum=0.9)


def _transformers(name: str, settings: Mapping[str, Any], where: str) -> Workload:
    import torch

    library = _load("transformers")
    library.logging.set_verbosity_error()  # what it has to say about its defaults does not concern a job without a checkpoint
    names = library.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    _require_known(name, names, where)
    own = {field.name for field in dataclasses.fields(TextSettings)}
    config = _configuration(
        library, name, {key: value for key, value in settings.items() if key not in own}, where
    )
    chosen = records.read(TextSettings, {key: value for key, value in settings.items() if key in own}, where)
    task = chosen.task or _usual_task(library, name, config, where)
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and chosen.length > most:
        raise BadRecord(
            f"{where}: length must be at most {most}, not {chosen.length}.",
            hint=f"Or give max_position_embeddings={chosen.length}.",
        )
    builder = getattr(library, _TASKS[task][0])

    def loss(model: Any, batch: Any) -> torch.Tensor:
        value: torch.Tensor = model(**batch).loss
        return value

    return Workload(
        name="text",
        model=lambda: builder.from_config(config).train(),
        batch=lambda n: _tokens(config, task, n, chosen.length),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=chosen.rate),
        default_batch=8,
    )


def _configuration(library: Any, name: str, settings: Mapping[str, Any], where: str) -> Any:
    """The library's configuration with the settings in place, each of the kind that the default has."""
    usual = library.AutoConfig.for_model(name)
    fields = {**usual.to_dict(), **{key: getattr(usual, key, None) for key in usual.attribute_map}}
    changes: dict[str, Any] = (
        {"use_cache": False} if "use_cache" in fields else {}
    )  # what is kept for writing on is of no use in training
    for key, value in settings.items():
        field = _ALIASES.get(key, key)
        if field not in fields:
            raise BadRecord(
                f"{where}: unknown key {key!r}.",
                hint=nearest(key, {*fields, *_ALIASES, *(f.name for f in dataclasses.fields(TextSettings))}),
            )
        default = fields[field]
        changes[field] = (
            records.convert(value, type(default), f"{where}: {key}")
            if isinstance(default, bool | int | float | str)
            else _plain(value)
        )
    try:
        config = library.AutoConfig.for_model(name, **changes)
    except Exception as error:
        raise BadRecord(f"{where}: transformers refuses these settings: {error}") from error
    if (
        getattr(config, "is_encoder_decoder", False)
        and getattr(config, "decoder_start_token_id", None) is None
    ):
        config.decoder_start_token_id = (
            config.pad_token_id
        )  # T5 begins so; its published configurations say it, the class does not
    return config


def _plain(value: Any) -> Any:
    """A setting whose default is empty, as a number where it looks like one: on a command line everything is text."""
    for kind in (int, float):
        try:
            return kind(value) if isinstance(value, str) else value
        except ValueError:
            continue
    return value


def _usual_task(library: Any, name: str, config: Any, where: str) -> str:
    """Translating for encoders with decoders, filling in masked words for encoders, writing on for decoders."""
    order = (
        ("translate",) if getattr(config, "is_encoder_decoder", False) else ("masked", "causal", "classify")
    )
    for task in order:
        if name in getattr(library.models.auto.modeling_auto, _TASKS[task][1]):
            return task
    raise BadJob(
        f"{where}: transformers has no network over text of this kind.",
        hint="Image networks: torchvision:NAME or timm:NAME.",
    )


def _tokens(config: Any, task: str, n: int, length: int) -> dict[str, Any]:
    """Random sequences with the labels that the library's own loss reads."""
    import torch

    tokens = torch.randint(0, config.vocab_size, (n, length))
    if task == "classify":
        return {"input_ids": tokens, "labels": torch.randint(0, config.num_labels, (n,))}
    if task == "masked":
        return {
            "input_ids": tokens,
            "labels": torch.where(torch.rand(n, length) < _MASKED_SHARE, tokens, _IGNORED),
        }
    return {"input_ids": tokens, "labels": tokens.clone()}


def _load(library: str) -> Any:
    """The library, or how to get it."""
    if importlib.util.find_spec(library) is None:
        raise Unavailable(f"{library} is not installed.", hint="pip install windtunnel[libraries]")
    if library != "torchvision" and importlib.util.find_spec("torchvision") is not None:
        _import_torchvision()  # the other two import it by themselves
    try:
        return _import_torchvision() if library == "torchvision" else importlib.import_module(library)
    except ImportError as error:
        raise Unavailable(
            f"{library} does not import: {error}", hint="pip install windtunnel[libraries]"
        ) from error


def _import_torchvision() -> Any:
    """torchvision built for CUDA cannot load its own operators beside a CPU build of torch, and then fails on their names; with the
    names declared its networks, which use none of these operators, work."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    import torch

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    declared = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    _KEPT.append(declared)
    return importlib.import_module("torchvision")


_KEPT: list[Any] = []  # a declaration lives as long as its library object


def _require_known(name: str, known: Iterable[str], where: str) -> None:
    names = list(known)
    if name not in names:
        hint = nearest(name, names)
        raise UnknownName(
            f"{where}: the library has no network {name!r}.",
            hint=hint if hint.startswith("Did") else f"It has {len(names)} others.",
        )


def _require_positive(settings: Any) -> None:
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, int | float) and not 0 < value < float("inf"):
            raise BadRecord(f"{field.name} must be above 0, not {value}.")
