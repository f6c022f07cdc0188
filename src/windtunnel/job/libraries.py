"""Networks of public libraries as jobs: `torchvision:resnet34`, `timm:mixer_s16_224`, `transformers:gpt2`.

`llm:gpt` and others are this package's own, of any size. Weights are random; nothing is downloaded. Settings
that are left out have the library's defaults.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from windtunnel import bounds, records, units
from windtunnel.errors import BadJob, BadRecord, Unavailable, UnknownName, nearest
from windtunnel.job import imports
from windtunnel.job.workload import Model, Origin, Workload, forward_inputs

if TYPE_CHECKING:
    import torch

LIBRARIES = ("torchvision", "timm", "transformers", "llm")
_AUXILIARY_WEIGHT = 0.3  # of the auxiliary classifiers' losses (Szegedy et al. 2015, section 5)
_TEXT_LENGTH = 128
_MASKED_SHARE = 0.15
_IGNORED = -100  # PyTorch's cross-entropy leaves this label out of the loss
# Short names of settings that nearly every transformers configuration has.
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
class LibraryImageSettings:
    """`image`: side of the images in pixels; default: the library's own for this network."""

    image: int | None = None
    classes: int = 1000
    channels: int = 3
    rate: float = 0.01

    def __post_init__(self) -> None:
        _require_positive(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryTextSettings:
    """Settings besides those of the library's own configuration, which are allowed too.

    length  tokens in a sequence
    task    causal (predict the next token), masked (fill in masked tokens), classify or translate;
            default: the first of masked, causal and classify that the library has for this network,
            translate for networks with encoder and decoder
    """

    length: int = _TEXT_LENGTH
    task: str | None = None
    rate: float = 1e-4

    def __post_init__(self) -> None:
        _require_positive(self)
        if self.task is not None and self.task not in _TASKS:
            raise BadRecord(f"task cannot be {self.task!r}.", hint=nearest(self.task, _TASKS))


def is_address(name: str) -> bool:
    """Whether a job's name has the form library:network."""
    return name.partition(":")[0] in LIBRARIES and ":" in name


def workload(address: str, settings: Mapping[str, object]) -> Workload:
    """Build a library's network as a job."""
    library, _, name = address.partition(":")
    if library == "llm":
        from windtunnel.job import language

        return language.workload(name, settings)
    build = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}[library]
    job = build(name, settings, f"job {address}")
    return dataclasses.replace(job, name=address, origin=Origin(job=address, settings=dict(settings)))


def _torchvision(name: str, settings: Mapping[str, object], where: str) -> Workload:
    models = _load("torchvision").models
    known = models.list_models(module=models)
    _require_known(name, known, where)
    options = records.read(LibraryImageSettings, settings, where)
    if options.channels != 3:
        raise BadRecord(
            f"{where}: channels must be 3, not {options.channels}: torchvision's networks take colour images."
        )
    default = int(getattr(models.get_model_weights(name).DEFAULT.transforms(), "crop_size", [224])[0])
    image = options.image or default
    size: dict[str, object] = {}  # only these networks depend on the size of the image
    if name.startswith("vit_"):
        size = {"image_size": image}
    elif name.startswith("maxvit"):
        size = {"input_size": (image, image)}
    return _image_job(
        lambda: models.get_model(name, weights=None, num_classes=options.classes, **size), options, image
    )


def _timm(name: str, settings: Mapping[str, object], where: str) -> Workload:
    timm = _load("timm")
    name = _current_name(name, timm.models.get_deprecated_models())
    _require_known(name, (*timm.list_models(), *timm.list_models(include_tags=True)), where)
    options = records.read(LibraryImageSettings, settings, where)
    default = int(timm.get_pretrained_cfg(name).input_size[-1])
    image = options.image or default

    def model() -> torch.nn.Module:
        arguments: dict[str, object] = {
            "pretrained": False,
            "num_classes": options.classes,
            "in_chans": options.channels,
        }
        if image == default:
            return timm.create_model(name, **arguments)  # type: ignore[no-any-return]
        try:
            return timm.create_model(name, **arguments, img_size=image)  # type: ignore[no-any-return]
        except TypeError:  # convolutional networks accept any size and have no such argument
            return timm.create_model(name, **arguments)  # type: ignore[no-any-return]

    return _image_job(model, options, image)


def _current_name(name: str, renamed: Mapping[str, str | None]) -> str:
    """What a network of an older timm is called today; benchmarks and scripts still have the old name."""
    return renamed.get(name) or name


def _image_job(model: Callable[[], torch.nn.Module], settings: LibraryImageSettings, image: int) -> Workload:
    import torch

    def batch(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(n, settings.channels, image, image), torch.randint(0, settings.classes, (n,))

    def build() -> torch.nn.Module:
        with warnings.catch_warnings():  # torchvision warns of a future change of its initial weights
            warnings.simplefilter("ignore", FutureWarning)
            network: torch.nn.Module = model()
        return network.train()

    return Workload(
        name="image",
        model=build,
        batch=batch,
        loss=_image_loss,
        forward=forward_inputs,
        optimizer=lambda params: _momentum(params, settings.rate),
        default_batch=32,
    )


def _image_loss(model: Model, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Cross-entropy, plus that of auxiliary classifiers for networks that have them."""
    from torch.nn.functional import cross_entropy

    images, labels = batch
    scores = model(images)
    if not isinstance(scores, tuple):
        return cross_entropy(scores, labels)
    main, *others = (part for part in scores if part is not None)
    return cross_entropy(main, labels) + _AUXILIARY_WEIGHT * sum(
        cross_entropy(other, labels) for other in others
    )


def _momentum(params: Iterable[torch.nn.Parameter], rate: float) -> torch.optim.Optimizer:
    import torch

    return torch.optim.SGD(params, lr=rate, momentum=0.9)


def _transformers(name: str, settings: Mapping[str, object], where: str) -> Workload:
    import torch

    library = _load("transformers")
    library.logging.set_verbosity_error()  # its warnings concern pretrained weights, which are not used here
    names = library.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    _require_known(name, names, where)
    own = {field.name for field in dataclasses.fields(LibraryTextSettings)}
    config = _configuration(
        library, name, {key: value for key, value in settings.items() if key not in own}, where
    )
    options = records.read(
        LibraryTextSettings, {key: value for key, value in settings.items() if key in own}, where
    )
    task = options.task or _default_task(library, name, config, where)
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and options.length > most:
        raise BadRecord(
            f"{where}: length must be at most {most}, not {options.length}.",
            hint=f"Or set max_position_embeddings={options.length}.",
        )
    builder = getattr(library, _TASKS[task][0])

    def loss(model: Model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        value: torch.Tensor = model(**batch).loss
        return value

    return Workload(
        name="text",
        model=lambda: builder.from_config(config).train(),
        batch=lambda n: _tokens(config, task, n, options.length),
        loss=loss,
        forward=lambda model, batch: model(**_without_labels(batch, task)),
        optimizer=lambda params: torch.optim.AdamW(params, lr=options.rate),
        default_batch=8,
    )


def _configuration(library: Any, name: str, settings: Mapping[str, object], where: str) -> Any:
    """The library's configuration, changed by the settings. Each value gets the type of its default."""
    default = library.AutoConfig.for_model(name)
    fields = {**default.to_dict(), **{key: getattr(default, key, None) for key in default.attribute_map}}
    # The key-value cache serves text generation only.
    changes: dict[str, object] = {"use_cache": False} if "use_cache" in fields else {}
    for key, value in settings.items():
        field = _ALIASES.get(key, key)
        if field not in fields:
            own = (f.name for f in dataclasses.fields(LibraryTextSettings))
            raise BadRecord(
                f"{where}: unknown key {key!r}.", hint=records.hint_for_key(key, {*fields, *_ALIASES, *own})
            )
        if isinstance(fields[field], bool | int | float | str):
            changes[field] = records.convert(value, type(fields[field]), f"{where}: {key}")
        else:
            changes[field] = units.literal(value) if isinstance(value, str) else value
        bounds.check_setting(field, changes[field], where)
    try:
        config = library.AutoConfig.for_model(name, **changes)
    except Exception as error:
        raise BadRecord(f"{where}: transformers refuses these settings: {error}") from error
    start = getattr(config, "decoder_start_token_id", None)
    if getattr(config, "is_encoder_decoder", False) and start is None:
        # T5's published configurations set this; the class does not.
        config.decoder_start_token_id = config.pad_token_id
    return config


def _default_task(library: Any, name: str, config: Any, where: str) -> str:
    """Translation for encoder-decoders; else the first of masked, causal and classify that exists."""
    both = getattr(config, "is_encoder_decoder", False)
    order = ("translate",) if both else ("masked", "causal", "classify")
    for task in order:
        if name in getattr(library.models.auto.modeling_auto, _TASKS[task][1]):
            return task
    raise BadJob(
        f"{where}: transformers cannot train this network on text.",
        hint="For image networks use torchvision:NAME or timm:NAME.",
    )


def _tokens(config: Any, task: str, n: int, length: int) -> dict[str, torch.Tensor]:
    """Random sequences, with the labels that the library's own loss needs."""
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


def _without_labels(batch: dict[str, torch.Tensor], task: str) -> dict[str, torch.Tensor]:
    """What inference gives to the network: without labels it computes no loss.

    A decoder reads the labels, shifted by one; without them it gets its own input.
    """
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    return {**inputs, "decoder_input_ids": batch["labels"]} if task == "translate" else inputs


def _load(library: str) -> Any:
    """Import the library, or say how to install it."""
    if importlib.util.find_spec(library) is None:
        raise Unavailable(f"{library} is not installed.", hint="pip install windtunnel[libraries]")
    imports.install()
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise Unavailable(
            f"{library} does not import: {error}", hint="pip install windtunnel[libraries]"
        ) from error


def _require_known(name: str, known: Iterable[str], where: str) -> None:
    names = list(known)
    if name not in names:
        hint = nearest(name, names)
        raise UnknownName(
            f"{where}: the library has no network {name!r}.",
            hint=hint if hint.startswith("Did") else f"It has {len(names)} others.",
        )


def _require_positive(settings: LibraryImageSettings | LibraryTextSettings) -> None:
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, int | float) and not 0 < value < float("inf"):
            raise BadRecord(f"{field.name} must be above 0, not {value}.")
        bounds.check_setting(field.name, value, "job")
