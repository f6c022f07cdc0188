"""The workload, or job: a network, its data, loss and optimiser.

A workload holds only functions. Creating one is therefore cheap, and another process can build it again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import sys
import traceback
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel import records
from windtunnel.bounds import MOST_EXAMPLES, MOST_NAME, brief
from windtunnel.errors import BadInput, BadJob, BadRecord, kind_of, nearest, text_of
from windtunnel.foreign import shown
from windtunnel.job import imports, scalers
from windtunnel.job.stored import StoredData

if TYPE_CHECKING:
    import torch

_MOST_CHARACTERS = 80  # of a line of the user's code that an error shows

# What a job's functions pass to each other. Each job has its own types.
Model = Any  # its nn.Module class
Batch = Any  # any structure of tensors
Optimizers = Any  # one optimiser, or any structure of several

# What each function of a job is called with.
_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "model": (),
    "batch": ("n",),
    "loss": ("model", "batch"),
    "optimizer": ("parameters",),
    "optimizers": ("model",),
    "step": ("model", "batch", "optimizer"),
    "forward": ("model", "batch"),
}

# One for each function that users most often give a value instead of.
_EXAMPLES: Mapping[str, str] = {
    "model": "model=lambda: MyNet()",
    "batch": "batch=lambda n: (torch.randn(n, 32), torch.randint(0, 10, (n,)))",
    "loss": "loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])",
    "optimizer": "optimizer=lambda params: torch.optim.AdamW(params)",
}

Loss = Callable[[Model, Batch], "torch.Tensor"]
Step = Callable[[Model, Batch, Optimizers], "torch.Tensor"]
Forward = Callable[[Model, Batch], Any]


def forward_inputs(model: Model, batch: Batch) -> Any:
    """A `forward` for batches that begin with the network's input, such as (images, labels)."""
    return model(batch[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The job's name and settings, from which any process can build it again."""

    job: str
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Any PyTorch training job.

    model()                  builds a new network, on the CPU
    batch(n)                 returns one batch of n examples
    loss(model, batch)       returns the loss, one number
    optimizer(parameters)    returns an optimiser
    examples                 size of the data set; gives the time of an epoch
    default_batch            batch if the strategy sets none
    clip_norm                clip gradients to this norm before the update
    forward(model, batch)    what inference runs; default: loss(model, batch)
    data                     what one example is on storage; default: the tensors of the batch

    A job with several losses or optimisers defines `step(model, batch, optimizer)` instead of `loss`. Any job
    may define `optimizers(model)` instead of `optimizer`; `step` receives its result as third argument, and
    for `loss` it is one optimiser.
    """

    name: str
    model: Callable[[], torch.nn.Module]
    batch: Callable[[int], Batch]
    loss: Loss | None = None
    optimizer: Callable[[Iterable[torch.nn.Parameter]], Optimizers] | None = None
    optimizers: Callable[[Model], Optimizers] | None = None
    step: Step | None = None
    examples: int | None = None
    default_batch: int = 1
    clip_norm: float | None = None
    forward: Forward | None = None
    data: StoredData | None = None
    origin: Origin | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= MOST_NAME:
            raise BadRecord(f"workload: name must be text of 1 to {MOST_NAME} characters.")
        object.__setattr__(self, "name", shown(self.name))
        if (self.loss is None) == (self.step is None):
            raise BadRecord(
                f"workload {self.name}: define either loss or step.",
                hint="loss(model, batch) returns a loss; step(model, batch, optimizer) trains on one batch.",
            )
        if self.optimizer is not None and self.optimizers is not None:
            raise BadRecord(f"workload {self.name}: define optimizer or optimizers, not both.")
        if self.loss is not None and self.optimizer is None and self.optimizers is None:
            raise BadRecord(
                f"workload {self.name}: loss needs an optimizer.",
                hint="For example optimizer=lambda params: torch.optim.AdamW(params)",
            )
        for name in ("model", "batch"):
            if getattr(self, name) is None:
                raise BadRecord(f"workload {self.name}: {name} must be a function, not None.")
        for name in _ARGUMENTS:
            _check_function(self.name, name, getattr(self, name))
        if self.data is not None and not isinstance(self.data, StoredData):
            raise BadRecord(
                f"workload {self.name}: data must be a StoredData, not {self.data!r}.",
                hint="For example data=windtunnel.StoredData(example_bytes=110e3, decode_seconds=5e-3)",
            )
        for name in ("examples", "default_batch"):
            value = getattr(self, name)
            if value is None and name == "examples":
                continue
            if not isinstance(value, int) or not 1 <= value <= MOST_EXAMPLES:
                given = brief(value) if isinstance(value, int) else _cut(repr(value))
                raise BadRecord(
                    f"workload {self.name}: {name} must be a whole number from 1 to {brief(MOST_EXAMPLES)}, "
                    f"not {given}."
                )

    @staticmethod
    def named(name: str, **settings: object) -> Workload:
        """The job of this name, with settings.

        `rnn` (a built-in network), `torchvision:resnet34` (a library's network), `path/to/file.py:function`
        (a function that returns a Workload), or a file that `save` wrote.
        """
        if name.endswith((".toml", ".json")):
            origin = records.read(Origin, records.load(Path(name)), name)
            return Workload.named(origin.job, **{**origin.settings, **settings})
        return _openers[-1](name, settings) if _openers else build_here(name, settings)

    def save(self, path: str | Path) -> None:
        """Write the job's name and settings to a file; `named(path)` builds it again."""
        if self.origin is None:
            raise BadRecord(
                f"workload {self.name} was created in Python and cannot be saved to a file.",
                hint="Create it in a function and load it with Workload.named('path/to/file.py:function').",
            )
        records.save(Path(path), self.origin)


Opener = Callable[[str, Mapping[str, object]], Workload]
_openers: list[Opener] = []  # the last one builds jobs; without any, this process does


@contextlib.contextmanager
def opened_by(opener: Opener) -> Iterator[None]:
    """Let `Workload.named` ask `opener` for jobs, which may build them in another process."""
    _openers.append(opener)
    try:
        yield
    finally:
        _openers.remove(opener)


def forget_openers() -> None:
    """Build every job in this process, which is the child process of jobs."""
    _openers.clear()


def build_here(name: str, settings: Mapping[str, object]) -> Workload:
    """Build a job in this process: a user's file, a library's network or a built-in one."""
    if ".py" in name and (":" in name or name.endswith(".py")):
        return load_file(name, settings)
    from windtunnel import networks
    from windtunnel.job import libraries

    if libraries.is_address(name):
        return libraries.workload(name, settings)
    return networks.workload(name, settings)


def _check_function(job: str, name: str, function: Any) -> None:
    """Refuse an object that cannot be called with the arguments of the job's function `name`."""
    if function is None:
        return
    is_module = type(function).__module__.startswith("torch.nn") or hasattr(function, "forward")
    if not callable(function) or (name == "model" and is_module and not isinstance(function, type)):
        raise BadRecord(
            f"workload {job}: {name} must be a function, not {_brief(function)}.",
            hint=f"For example {_EXAMPLES.get(name, _EXAMPLES['model'])}",
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin
        return
    try:
        signature.bind(*_ARGUMENTS[name])
    except TypeError:
        code = getattr(function, "__code__", None)
        place = f" at {Path(code.co_filename).name} line {code.co_firstlineno}" if code else ""
        raise BadRecord(
            f"workload {job}: {name}{signature}{place} is called as {name}({', '.join(_ARGUMENTS[name])}).",
            hint=f"Give it {len(_ARGUMENTS[name]) or 'no'} argument{'s' * (len(_ARGUMENTS[name]) != 1)}.",
        ) from None


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"an object of type {type(value).__name__}"


def load_function(address: str) -> Callable[..., Any]:
    """The function that `path/to/file.py:function` names, not yet called."""
    path_text, _, function = address.rpartition(":")
    if not path_text or not function:
        raise BadJob(
            f"{address!r} names no function.",
            hint="Write it as path/to/file.py:function, where function() returns a Workload.",
        )
    path = job_file(path_text)
    module = _import_file(path, path_text)
    build = getattr(module, function, None)
    if not callable(build):
        known = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise BadJob(
            f"{path_text} has no function {function!r}.", hint=nearest(function, known) or "It has none."
        )
    return build  # type: ignore[no-any-return]


def load_file(address: str, settings: Mapping[str, object]) -> Workload:
    """Call `function` of `path/to/file.py:function` and return its workload."""
    build = load_function(address)
    path_text, _, function = address.rpartition(":")
    path = Path(path_text).resolve()
    try:
        with scalers.noted(), _as_script(path):
            workload = build(**settings)
    except BadInput as error:
        text = error.message or f"it raised {type(error).__name__}."
        raise kind_of(error)(f"{address}: {text}", hint=error.hint or place_of(error)) from error
    except SystemExit as error:
        raise ends_program(address, error) from error
    except Exception as error:
        hint = _missing_settings(build, settings, function) or place_of(error)
        raise BadJob(f"{address} raised {type(error).__name__}: {text_of(error)}", hint=hint) from error
    if not isinstance(workload, Workload):
        raise BadJob(
            f"{address} returned {type(workload).__name__}, not a windtunnel.Workload.",
            hint="Return windtunnel.Workload(name=..., model=..., batch=..., loss=..., optimizer=...).",
        )
    return dataclasses.replace(workload, origin=Origin(job=f"{path}:{function}", settings=dict(settings)))


def job_file(text: str) -> Path:
    """The full path of a job's file, or an error that says why there is none."""
    try:
        path = Path(text).resolve()
        found = path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # such as a name that is too long
        reason = getattr(error, "strerror", None) or error
        raise BadJob(f"{_brief_path(text)} cannot be read: {reason}.") from error
    if not found:
        raise BadJob(f"There is no file {_brief_path(text)}.", hint="Write it as path/to/file.py:function.")
    return path


def _brief_path(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS * 2 else f"{text[:_MOST_CHARACTERS]} ..."


def _missing_settings(build: Callable[..., Any], settings: Mapping[str, object], function: str) -> str:
    """A hint for settings that the function needs and did not get, or has not."""
    parameters = inspect.signature(build).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    missing = [p.name for p in named if p.default is p.empty and p.name not in settings]
    unknown = [name for name in settings if name not in {p.name for p in named}]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        close = nearest(unknown[0], (p.name for p in named)) or f"{function}() takes no settings."
        return f"{function}() has no setting {unknown[0]!r}. {close}"
    examples = " ".join(f"{name}=..." for name in missing)
    return f"Give {examples} after the job, or give {function}() defaults." if missing else ""


def _import_file(path: Path, name: str) -> types.ModuleType:
    """Import a user's file like a script, and like a module of its folder: it can import its neighbours,
    also later and also as `from .neighbour import Net`."""
    package = types.ModuleType(f"windtunnel_job_{zlib.crc32(str(path.parent).encode()):x}")
    package.__path__ = [str(path.parent)]
    spec = importlib.util.spec_from_file_location(f"{package.__name__}.{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[package.__name__], sys.modules[spec.name] = package, module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    imports.install()
    try:
        with scalers.noted(), _as_script(path):
            spec.loader.exec_module(module)
    except SystemExit as error:
        raise ends_program(f"Importing {name}", error) from error
    except Exception as error:
        raise BadJob(
            f"{name} does not import: {type(error).__name__}: {text_of(error)}", hint=place_of(error)
        ) from error
    return module


@contextlib.contextmanager
def _as_script(path: Path) -> Iterator[None]:
    """While it is imported, a job file sees its own name and no options on the command line, so defaults
    apply."""
    before, sys.argv = sys.argv, [str(path)]
    try:
        yield
    finally:
        sys.argv = before


def ends_program(what: str, error: SystemExit) -> BadJob:
    """The error for user code that called exit(), itself or through a parser of options."""
    return BadJob(
        f"{what} ended the program (SystemExit: {text_of(error) or None}).",
        hint='Put code that reads options or exits under: if __name__ == "__main__". ' + place_of(error),
    )


def place_of(error: BaseException, function: Callable[..., Any] | None = None) -> str:
    """A hint that names the last line of the user's own code in the traceback, else that of `function`."""
    place = _unset_variable(error)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
    if isinstance(error, SyntaxError) and error.lineno:
        place += f"Look at {Path(error.filename or '').name} line {error.lineno}; "
    elif frames:
        last = frames[-1]
        place += f"Look at {Path(last.filename).name} line {last.lineno}: {_cut(last.line)}; "
    elif function is not None and place_of_function(function):
        place += f"Look at {place_of_function(function)}; "
    return f"{place}--debug shows the whole traceback."


def _unset_variable(error: BaseException) -> str:
    """A hint for an environment variable that the user's code reads and that is not set."""
    frames = traceback.extract_tb(error.__traceback__)
    is_read = bool(frames) and frames[-1].filename.endswith(("os.py", "<frozen os>"))
    if not is_read or not isinstance(error, KeyError):
        return ""
    return f"Set the variable, as torchrun does, such as {error.args[0]}=0 before the command. "


def place_of_function(function: Callable[..., Any]) -> str:
    """Such as "loss() at train.py line 12"; empty if it is not known."""
    code = getattr(function, "__code__", None)
    if code is None:
        return ""
    name = "the lambda" if code.co_name == "<lambda>" else f"{code.co_name}()"
    return f"{name} at {Path(code.co_filename).name} line {code.co_firstlineno}"


def _cut(line: str | None) -> str:
    line = line or ""
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]} ..."


def is_users(filename: str) -> bool:
    """Whether a file is the user's own, not a library's or ours."""
    return (
        "site-packages" not in filename
        and Path(__file__).parent.parent not in Path(filename).parents
        and not filename.startswith("<")
        and "lib/python" not in filename
    )
