"""Fake tensors with known values where these are cheap to compute.

A step may depend on values: lengths decide shapes, masks how many examples go on, a counter how many layers
run. Small integers, and small tensors that code creates from constants, are therefore also computed for real.
Weights, activations and losses stay fake, so a trace costs no more than before.

If code reads a tensor without a known value:

- Indices that the network computes (top-k, argmax, sort) are spread evenly: that is what routing aims at.
- Values are finite: a training that works has no infinities.
- One number that is read, such as a loss for a log, is 1.
- Any other value comes from a real step at a small batch (`rehearsal`).

The lines of code that read such values are noted for the forecast's cautions.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils import _pytree as pytree

from windtunnel.errors import BadJob
from windtunnel.trace import sparse
from windtunnel.trace.checks import CHECKS
from windtunnel.trace.notes import Notes
from windtunnel.trace.places import caller, user_line
from windtunnel.trace.rehearsal import NeedsRehearsal, RehearsalValues, is_comparison

_aten = torch.ops.aten
_FIND_INFINITE = _aten._amp_foreach_non_finite_check_and_unscale_.default
_DEVICE = torch.ops.prim.device.default
# Elements up to which values are computed. Labels of every pixel of a batch are some 10 million integers;
# anchors and masks some 100,000 floats. Larger ones would cost more time than the rest of the trace.
_MOST_INTEGERS = 2**24
_MOST_FLOATS = 2**20
_MOST_FLOATS_OF_A_MODEL = 2**7  # values of initial weights are not needed
_MOST_LIKE = 64

# Ops that return indices along a dimension, with the place of these among their results.
_INDICES: dict[Any, int] = {
    _aten.topk.default: 1,
    _aten.sort.default: 1,
    _aten.sort.stable: 1,
    _aten.argsort.default: 0,
    _aten.argmax.default: 0,
    _aten.argmin.default: 0,
    _aten.max.dim: 1,
    _aten.min.dim: 1,
    _aten.multinomial.default: 0,
}
_LIKE = frozenset(
    getattr(_aten, name).default
    for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
)
# Memory that nothing was written to yet.
_BLANK = frozenset(
    getattr(getattr(_aten, name), overload)
    for name, overload in (
        ("empty", "memory_format"),
        ("empty_like", "default"),
        ("empty_strided", "default"),
        ("new_empty", "default"),
        ("new_empty_strided", "default"),
    )
)
_DYNAMIC = (DataDependentOutputException, DynamicOutputShapeException)


class Known(NamedTuple):
    """The value of a fake tensor: whether it was assumed, whether it is on the device, and whether it was
    sampled from the values of a real step."""

    value: Tensor
    is_assumed: bool = False
    on_device: bool = False
    is_rehearsed: bool = False


class ValueTrackingMode(FakeTensorMode):
    """Fake tensors, some with values. `target` is "cpu" or "gpu"; `rehearsal_values` are values of a real
    step."""

    def __init__(self, target: str, notes: Notes, rehearsal_values: RehearsalValues | None = None) -> None:
        super().__init__(allow_non_fake_inputs=True)  # type: ignore[no-untyped-call]
        self.target, self.notes, self.rehearsal_values = target, notes, rehearsal_values
        self._thread = threading.get_ident()
        self.elsewhere = ""  # where another thread runs ops, which no recorder sees
        self.is_building = False  # the model is being built; nothing may be assumed
        self.assumed_last = False  # whether the last number read was assumed
        self._stale: weakref.WeakSet[Any] = weakref.WeakSet()  # storages that hold an unknown value by now
        self._blank: weakref.WeakSet[Any] = weakref.WeakSet()  # storages that hold no value yet

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE or type(func) is not torch._ops.OpOverload:
            return super().dispatch(func, types, args, kwargs)
        if threading.get_ident() != self._thread:
            self.elsewhere = self.elsewhere or user_line() or "a library"
        if "device" in kwargs:
            kwargs = self._without_cuda(kwargs)
        special = _SPECIAL.get(func)
        if special is not None:
            return special(self, func, args, kwargs)
        tensors = flat((*args, *kwargs.values()) if kwargs else args)
        check = CHECKS.get(func)
        if check is not None:
            check(self.known, args)
        mutable = func._schema.is_mutable
        known = self._known_of(tensors, written_by(func, args, kwargs) if mutable else (), func.is_view)
        if func in sparse.MAKERS or (known is None and any(map(sparse.parts_of, tensors))):
            handle = sparse.MAKERS.get(func) or sparse.ON_SPARSE.get(func)
            if handle is not None:
                return self._handle_sparse(handle, func, types, args, kwargs)
        try:
            result = super().dispatch(func, types, args, kwargs)
        except _DYNAMIC:
            return self._run_on_values(func, args, kwargs)
        if result is NotImplemented:  # a distributed tensor runs the op on its own part
            return result
        if known is not None:
            self._compute(func, args, kwargs, result, known)
        elif mutable:
            self._forget_written(func, args, kwargs)
        else:
            self._assume_values(func, args, kwargs, result, tensors)
        return result

    def _handle_sparse(self, handle: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        own = super().dispatch

        def run() -> Any:
            with unset_fake_temporarily():
                return own(func, types, args, kwargs)

        with self:
            return handle(self, run, args)

    def known(self, tensor: Any) -> Known | None:
        """The value of a tensor as far as it is known."""
        known = self._held(tensor)
        if known is not None and self._blank and known.value.untyped_storage() in self._blank:
            return None
        return known

    def _held(self, tensor: Any) -> Known | None:
        """As `known`, but also for memory that was never written."""
        if type(tensor) is FakeTensor:
            known: Known | None = tensor.__dict__.get("_known")
        elif type(tensor) is Tensor and not tensor.requires_grad and tensor.layout == torch.strided:
            known = Known(tensor)  # a real tensor, such as an attribute of a module
        else:
            return None
        if known is not None and self._stale and known.value.untyped_storage() in self._stale:
            return None
        return known

    def know(self, fake: Tensor, known: Known) -> Tensor:
        """Give a fake tensor its value."""
        if type(fake) is FakeTensor and fake.shape == known.value.shape:
            fake.__dict__["_known"] = known
        return fake

    def adopt(self, tensor: Tensor, *, is_value: bool) -> Tensor:
        """A real tensor as a fake one. `is_value`: its value does not change, unlike that of a weight."""
        fake = self.from_tensor(tensor)
        if is_value and _is_small(tensor, _MOST_FLOATS):
            self.know(fake, Known(tensor.detach(), on_device=True))
        return fake

    def place_on_device(self, tensor: Tensor) -> None:
        """Note that a tensor lies on the device, as those of a batch do."""
        known = self.known(tensor)
        if known is not None:
            self.know(tensor, known._replace(on_device=True))

    def forget(self, tensor: Tensor) -> None:
        """A weight's value changes in every step: it is not known."""
        known = self.known(tensor)
        if known is not None and type(tensor) is FakeTensor:
            self._stale.add(known.value.untyped_storage())

    def wrap(self, value: Tensor, known: Known) -> Tensor:
        """A new fake tensor of a value."""
        with self:
            fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        return self.know(fake, known._replace(value=value))

    def need(self, tensor: Tensor) -> Known:
        """The value of a tensor that decides what the step does."""
        known = self.known(tensor)
        if known is not None:
            if known.is_assumed:
                self.notes.assume(user_line())
            return known
        if self.is_building:
            raise DataDependentOutputException(_aten._local_scalar_dense.default)
        if tensor.is_floating_point():
            # All different, and none of them zero: what a count of such values would find.
            count = torch.arange(1, tensor.numel() + 1).to(tensor.dtype)
            return Known(count.view(tensor.shape), is_assumed=True, on_device=True)
        if self.rehearsal_values is None:
            raise NeedsRehearsal(user_line())
        self.notes.decide(user_line())
        return Known(torch.zeros(tensor.shape, dtype=tensor.dtype), is_assumed=True, on_device=True)

    def read(self, tensor: Tensor) -> Any:
        """One number. An unknown float is 1 unless a real step showed another.

        Results of comparisons are sampled independently. So two comparisons of the same floats may contradict
        each other: a number is neither 0 nor different from 0. A boolean computed from them is therefore
        that of the real step.
        """
        learned = self.rehearsal_values.next_number(caller()) if self.rehearsal_values is not None else None
        known, self.assumed_last = self.known(tensor), False
        if (known is None or known.on_device) and not self.is_building:
            self.notes.read(user_line())
        is_judged = known is not None and known.is_rehearsed and isinstance(learned, bool)
        if learned is not None and (known is None or is_judged):
            self.notes.decide(user_line())
            return learned
        if known is None and tensor.is_floating_point() and not self.is_building:
            self.assumed_last = True
            return 1.0
        return self.need(tensor).value.item()

    def is_waiting(self, tensor: Tensor) -> bool:
        """Whether the host waits for the device when it reads this tensor."""
        known = self.known(tensor)
        return known is None or known.on_device

    def _known_of(
        self, tensors: Sequence[Tensor], written: Sequence[Tensor], is_view: bool
    ) -> list[Known] | None:
        """The values of all tensors; None if one is unknown. Tensors that the op only writes or views may
        have none yet."""
        found = []
        for tensor in tensors:
            may_be_blank = is_view or any(tensor is each for each in written)
            known = self._held(tensor) if may_be_blank else self.known(tensor)
            if known is None:
                return None
            found.append(known)
        return found

    def _compute(self, func: Any, args: Any, kwargs: Any, result: Any, known: Sequence[Known]) -> None:
        """Run an op on values too."""
        results = flat((result,))
        most = _MOST_FLOATS_OF_A_MODEL if self.is_building else _MOST_FLOATS
        if not all(_is_small(t, most) for t in results):
            self._forget_written(func, args, kwargs)
            return
        try:
            values = flat((self._run(func, args, kwargs),))
        except Exception:  # such as a kernel that the CPU lacks
            self._forget_written(func, args, kwargs)
            return
        assumed, on_device, recalled = (any(k[fact] for k in known) for fact in (1, 2, 3))
        own = {id(k.value) for k in known}
        # Some views, such as to(), copy what they see.
        is_blank = func in _BLANK or any(k.value.untyped_storage() in self._blank for k in known)
        written = {id(t) for t in flat(args)}
        for fake, value in zip(results, values, strict=False):
            if id(value) in own and id(fake) not in written:
                value = value.detach()
            self.know(fake, Known(value, assumed, on_device, recalled))
            if func._schema.is_mutable:
                self._blank.discard(value.untyped_storage())
            elif is_blank:
                self._blank.add(value.untyped_storage())

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The op on values. No mode is active here, so real kernels run."""

        def value(tensor: Tensor) -> Tensor:
            known = self._held(tensor)
            assert known is not None
            return known.value

        return func(*pytree.tree_map_only(Tensor, value, args), **pytree.tree_map_only(Tensor, value, kwargs))

    def _assume_values(
        self, func: Any, args: Any, kwargs: Any, result: Any, tensors: Sequence[Tensor]
    ) -> None:
        """Values of results that do not depend on what is unknown, or can be assumed."""
        results = flat((result,))
        if func in _INDICES:
            fake = results[_INDICES[func]]
            if _is_small(fake, 0):
                self.know(fake, Known(spread(func, args, kwargs, fake), is_assumed=True, on_device=True))
        elif func in _LIKE:
            if results[0].numel() <= _MOST_LIKE:
                like = torch.empty(args[0].shape, dtype=args[0].dtype)
                self.know(results[0], Known(func(like, *args[1:], **kwargs), on_device=True))
        elif results and results[0].dtype == torch.bool and (finite := _if_finite(func, args)) is not None:
            if _is_small(results[0], 0):
                self.know(results[0], Known(torch.full(results[0].shape, finite), on_device=True))
        elif self.rehearsal_values is not None and is_comparison(tensors, results):
            for fake in results:
                self._set_rehearsed_values(func, fake)

    def _set_rehearsed_values(self, func: Any, fake: Tensor) -> None:
        """Set the values of a real step, resized to this tensor."""
        assert self.rehearsal_values is not None
        value = self.rehearsal_values.next_values(func, caller(), fake)
        if value is not None and _is_small(fake, 0):
            self.know(fake, Known(value, is_assumed=True, on_device=True, is_rehearsed=True))

    def _forget_written(self, func: Any, args: Any, kwargs: Any) -> None:
        """The values of tensors that an op writes to are unknown from here on, and those of their views."""
        if not func._schema.is_mutable or func is _FIND_INFINITE:
            return  # gradients are finite, so the check of a GradScaler writes the zero that is there
        for tensor in written_by(func, args, kwargs):
            known = self._held(tensor)
            if known is not None:
                self._stale.add(known.value.untyped_storage())

    def _run_on_values(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an op whose shape depends on values."""
        found: list[Known] = []

        def value(tensor: Tensor) -> Tensor:
            found.append(self.need(tensor))
            return found[-1].value

        real = func(*pytree.tree_map_only(Tensor, value, args), **pytree.tree_map_only(Tensor, value, kwargs))
        exact = all(self.known(t) is not None for t in flat((*args, *kwargs.values())))
        if any(k.on_device for k in found):
            self.notes.read(user_line())
        assumed = Known(torch.empty(0), any(k.is_assumed for k in found), True)

        def fake(tensor: Tensor) -> Tensor:
            wrapped = self.wrap(tensor, assumed)
            if not exact and tensor.is_floating_point():
                del wrapped.__dict__["_known"]
            return wrapped

        return pytree.tree_map_only(Tensor, fake, real)

    def _without_cuda(self, kwargs: Any) -> Any:
        """A GPU's tensors are fake CPU tensors here: "cuda" written into the job means where all tensors are.

        Mixing in fake CUDA tensors would end the process in backward on a machine without CUDA.
        """
        device = kwargs.get("device")
        if device is None or torch.device(device).type != "cuda":
            return kwargs
        if self.target == "cpu":
            raise BadJob(
                f"{user_line() or 'The job'} asks for the device {str(device)!r}, which a CPU lacks.",
                hint="Predict it on a GPU machine, or let the job use the device of its model.",
            )
        return {**kwargs, "device": torch.device("cpu")}


def flat(values: Any) -> list[Tensor]:
    """The tensors among an op's arguments or results. It runs for every op, and pytree would be too slow."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)) and value:
            tensors += flat(value)
    return tensors


def written_by(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an op writes to."""
    found: list[Any] = []
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[number] if number < len(args) else kwargs.get(argument.name))
    return flat(found)


def spread(func: Any, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """Indices along a dimension, spread evenly: a new random order for each row, or one index of any row."""
    source = args[0]
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    dim = given.get("dim", -1)
    if not source.dim() or (func in (_aten.argmax.default, _aten.argmin.default) and dim is None):
        return torch.randint(0, max(1, source.numel()), result.shape)
    dim = -1 if dim is None else int(dim)
    if source.dim() != result.dim() or result.shape[dim] == 1:  # one index for each row
        return torch.randint(0, max(1, source.shape[dim]), result.shape)
    rows = [size for number, size in enumerate(source.shape) if number != dim % source.dim()]
    order = torch.rand(*rows, source.shape[dim]).argsort(-1)[..., : result.shape[dim]]
    return order.movedim(-1, dim).contiguous()


def _if_finite(func: Any, args: Any) -> bool | None:
    """What a comparison with infinity, or with itself, finds for finite values."""
    if func is _aten.isnan.default or func is _aten.isinf.default:
        return False
    other = args[1] if len(args) > 1 else None
    same = other is args[0] or (isinstance(other, float) and not math.isfinite(other))
    if not same or func.overloadpacket not in (_aten.eq, _aten.ne):
        return None
    is_equal = other is args[0]
    return is_equal if func.overloadpacket is _aten.eq else not is_equal


def _is_small(tensor: Tensor, most_floats: int) -> bool:
    if tensor.layout != torch.strided:
        return False
    is_float = tensor.is_floating_point() or tensor.is_complex()
    return tensor.numel() <= (most_floats if is_float else _MOST_INTEGERS)


def _read(mode: ValueTrackingMode, func: Any, args: Any, kwargs: Any) -> Any:
    return mode.read(args[0])


def _equal(mode: ValueTrackingMode, func: Any, args: Any, kwargs: Any) -> bool:
    return bool(torch.equal(*(mode.need(t).value for t in args)))


def _pack(mode: ValueTrackingMode, func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
    """A padded sequence without its padding: its lengths decide."""
    source, lengths, batch_first = args
    thin = torch.empty(*source.shape[:2], 1)
    data, sizes = func(thin, mode.need(lengths).value, batch_first)
    with mode:
        packed = source.new_empty(data.shape[0], *source.shape[2:])
    return packed, mode.wrap(sizes, Known(sizes))


def _align(mode: ValueTrackingMode, func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
    """CTC's loss of each example and its table: timesteps by twice the longest target."""
    logs, _, _, lengths = args[:4]
    known = mode.need(lengths).value if isinstance(lengths, Tensor) else torch.tensor(lengths)
    examples = logs.shape[1] if logs.dim() == 3 else 1
    longest = int(known.max()) if known.numel() else 0
    with mode:
        return logs.new_empty(examples), logs.new_empty(examples, logs.shape[0], 2 * longest + 1)


def _align_backward(mode: ValueTrackingMode, func: Any, args: Any, kwargs: Any) -> Tensor:
    with mode:
        return torch.empty_like(args[1])


def _grouped_product(mode: ValueTrackingMode, func: Any, args: Any, kwargs: Any) -> Tensor:
    """Products of groups of rows, in any number format: PyTorch's own fake kernel knows bf16 only."""
    left, right = args[:2]
    groups = args[2] if len(args) > 2 else kwargs.get("offs")
    shape: tuple[int, ...]
    if left.dim() == right.dim() == 2:
        shape = (groups.shape[0], left.shape[0], right.shape[1])
    elif left.dim() == right.dim():
        shape = (left.shape[0], left.shape[1], right.shape[2])
    else:
        shape = (left.shape[-2], right.shape[-1])
    with mode:
        result: Tensor = left.new_empty(shape, dtype=kwargs.get("out_dtype"))
    return result


def _zeros(mode: ValueTrackingMode, func: Any, args: Any, kwargs: Any) -> Tensor:
    """Zeros without memory, which forward differentiation makes: of fake tensors, PyTorch takes the sum with
    them to another device."""
    with mode:
        result: Tensor = torch.zeros(args[0], **kwargs)
    return result


_SPECIAL: dict[Any, Callable[..., Any]] = {
    _aten._efficientzerotensor.default: _zeros,
    _aten._local_scalar_dense.default: _read,
    _aten.equal.default: _equal,
    _aten._pack_padded_sequence.default: _pack,
    _aten._ctc_loss.default: _align,
    _aten._ctc_loss.Tensor: _align,
    _aten._ctc_loss_backward.default: _align_backward,
    _aten._ctc_loss_backward.Tensor: _align_backward,
    _aten._grouped_mm.default: _grouped_product,
}
