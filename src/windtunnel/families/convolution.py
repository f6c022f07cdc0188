"""Convolutions, ordinary and transposed, in one to three dimensions.

A backward is one piece of work for each gradient it computes. A transposed convolution is the gradient of an
ordinary one and is described as that. Volumes are kinds of work of their own, because libraries have fewer
and slower kernels for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from windtunnel.families import convolution_draws, convolution_image_draws
from windtunnel.families.base import DescribedOp, Family, OpCall, Piece, PlainOp, Winograd
from windtunnel.families.drawing import ProbeCase, Sizes
from windtunnel.families.features import BYTES, evenness, log2, number_format
from windtunnel.families.matmul import Product, TileFeatures
from windtunnel.families.reduction import reduction_piece
from windtunnel.families.streaming import streaming_piece
from windtunnel.families.tensors import has_channels_last, plane

if TYPE_CHECKING:
    from torch import Tensor

# Winograd's algorithm needs fewer products than the definition of a 3 x 3 convolution: up to 4 times fewer.
_WINOGRAD_SHARE = 0.25
# How many times fewer: 4 products for each result of a tile of 2 x 2 instead of 9, 2.25 with 4 x 4.
_SMALL_TILES, _LARGE_TILES = 9 / 4, 9 / 2.25
# Large tiles: 6 x 6 numbers for each tile of 4 x 4 are written and read again, of images and of results.
_TRANSFORM_PASSES = 1 + 2 * (6 * 6) / (4 * 4)
# A 1 x 1 convolution in fp32 is a matrix product, and cuDNN's kernels for it use more lanes of a Hopper
# multiprocessor: DeepBench's on V100, T4, GTX 1080 Ti, P100 and Titan X.
_POINTWISE_LANE_USE = 1.18
# Groups in channels-last with kernels of their own. The others are many times slower on Volta, Turing and
# Ampere (pytorch issue 70954). On an RTX 3090, 32 and more groups of these widths are fast if they fill tiles
# of 64 channels (ResNeXt and three other networks); fewer groups and other widths are not (RegNet, NFNet).
_FEWEST_FAST_GROUPS, _FAST_GROUP_WIDTHS, _GROUPS_TILE = 32, {4.0, 8.0, 16.0, 32.0}, 64
# Gradients of depthwise convolutions in channels-last: steps of an RTX 3090, a V100 and an A100.
_DEPTHWISE_GRADIENTS = 1.5
_NOT_PROBED_GROUPS = "grouped convolutions in channels-last were not probed; before Ada they are slow"
_FEW_CHANNELS = 8  # tensor cores multiply 8 numbers of fp16 at once
_GRADIENTS = ("to_input", "to_weight", "to_bias")
_TRANSPOSITION = 2 / 0.8  # a read and a write, at 0.8 of the rate of a copy: steps of an RTX 3090
_TRANSPOSED_FORMATS = ("tf32", "bf16", "fp16")
_AS_GRADIENT = {"forward": "data", "data": "forward", "weight": "weight"}  # of a transposed convolution


class ConvolutionFeatures(NamedTuple):
    """Features of a convolution in addition to the tiles of the equivalent matrix product."""

    log_examples: float
    log_group_channels: float
    log_group_out_channels: float
    log_out_height: float
    log_out_width: float
    log_kernel_height: float
    log_kernel_width: float
    stride: float
    dilation: float
    log_groups: float
    is_depthwise: float
    even_channels: float
    even_out_channels: float
    even_out_height: float
    out_height_by_seven: float
    log_bytes: float
    number_format: float
    channels_last: float


class VolumeFeatures(NamedTuple):
    """Features of a volume in addition to those of one of its planes."""

    log_out_depth: float
    log_kernel_depth: float


_NO_DEPTH = {"depth": 0, "out_depth": 0, "kernel_depth": 0}


class ConvolutionSizes(NamedTuple):
    """`height`, `out_height` and `kernel_height` of a volume are those of all its planes together; an image
    has no depth (0)."""

    examples: int
    channels: int
    out_channels: int
    height: int
    width: int
    out_height: int
    out_width: int
    kernel_height: int
    kernel_width: int
    stride: int
    dilation: int
    groups: int
    is_transposed: int
    has_bias: int
    channels_last: int
    depth: int = 0
    out_depth: int = 0
    kernel_depth: int = 0

    @property
    def input_elements(self) -> int:
        return self.examples * self.channels * self.height * self.width

    @property
    def output_elements(self) -> int:
        return self.examples * self.out_channels * self.out_height * self.out_width

    @property
    def weights(self) -> float:
        return self.channels * self.out_channels * self.kernel_height * self.kernel_width / self.groups

    @property
    def is_depthwise(self) -> bool:
        return self.groups == self.channels and self.groups > 1

    @property
    def slow_group_width(self) -> float:
        """Channels in a group if groups are slow: in channels-last, other than many equal ones; else 0."""
        if not self.channels_last or self.groups == 1 or self.is_depthwise:
            return 0.0
        widths = {self.channels / self.groups, self.out_channels / self.groups}
        is_even = len(widths) == 1 and widths <= _FAST_GROUP_WIDTHS and self.channels % _GROUPS_TILE == 0
        is_fast = is_even and self.groups >= _FEWEST_FAST_GROUPS
        return 0.0 if is_fast else self.channels / self.groups

    def as_gradient_of(self) -> ConvolutionSizes:
        """The ordinary convolution whose gradient this transposed one is."""
        return self._replace(
            channels=self.out_channels,
            out_channels=self.channels,
            height=self.out_height,
            width=self.out_width,
            out_height=self.height,
            out_width=self.width,
            depth=self.out_depth,
            out_depth=self.depth,
        )

    def one_plane(self) -> ConvolutionSizes:
        """The heights of one plane, and no depth."""
        return self._replace(
            height=self.height // max(self.depth, 1),
            out_height=self.out_height // max(self.out_depth, 1),
            kernel_height=self.kernel_height // max(self.kernel_depth, 1),
            **_NO_DEPTH,
        )

    def product(self, role: str) -> Product:
        """The matrix product to which one piece of a convolution is equivalent."""
        out, channels = self.out_channels / self.groups, self.channels / self.groups
        kernel = self.kernel_height * self.kernel_width
        positions = self.examples * self.out_height * self.out_width
        if role == "forward":
            return Product(self.groups, positions, out, channels * kernel)
        if role == "data":
            return Product(self.groups, self.examples * self.height * self.width, channels, out * kernel)
        return Product(self.groups, out, channels * kernel, positions)


_FORWARD_SIZES = ConvolutionSizes._fields
_LAST = _FORWARD_SIZES.index("channels_last")  # the sizes of a backward's gradients stand before it
_BACKWARD_SIZES = (*_FORWARD_SIZES[:_LAST], *_GRADIENTS, *_FORWARD_SIZES[_LAST:])
_IMAGE, _VOLUME = "convolution", "convolution volume"  # beginnings of the kinds of work
_IMAGE_FEATURES = (*TileFeatures._fields, *ConvolutionFeatures._fields)
_ROLES = ("forward", "data", "weight")


class ConvolutionFamily(Family):
    """Convolutions of images, sequences and volumes."""

    name = "convolution"
    names = frozenset(
        """
        convolution convolution_backward _convolution mkldnn_convolution cudnn_convolution
        _slow_conv2d_forward
        """.split()
    )
    library_ops = (
        *("cudnn_convolution", "miopen_convolution", "mkldnn_convolution", "_convolution_pointwise"),
        *("_conv_depthwise", "conv_depthwise", "_slow_conv", "slow_conv"),
    )
    kernels = ("conv", "wgrad", "dgrad", "implicit_gemm", "nchwtonhwc", "nhwctonchw", "winograd")
    sizes = _FORWARD_SIZES
    later_sizes = (0, 0, 0)
    kinds: Mapping[str, tuple[str, ...]] = {
        **{f"{_IMAGE} {role}": _IMAGE_FEATURES for role in _ROLES},
        **{f"{_VOLUME} {role}": (*_IMAGE_FEATURES, *VolumeFeatures._fields) for role in _ROLES},
    }
    draws: Mapping[str, int] = {
        "convolution": 48,
        "depthwise": 8,
        "grouped": 5,
        "square": 6,
        "gate": 2,
        "transposed": 6,
    }
    gpu_draws: Mapping[str, int] = {"volume": 8, "line": 4, "dilated": 3, "depthwise_layout": 4, "layout": 8}
    cpu_draws: Mapping[str, int] = {"depthwise_layout": 3, "layout": 12}
    uses_tensor_cores = True
    is_cudnn_call = True
    repeats_workspaces = True
    workspace_is_optional = True  # cuDNN's next plan is tried (aten/src/ATen/native/cudnn/Conv_v8.cpp)
    fewest_flop_share = _WINOGRAD_SHARE

    def size_names(self, op_name: str) -> tuple[str, ...]:
        return _BACKWARD_SIZES if "backward" in op_name else _FORWARD_SIZES

    def flop(self, call: OpCall) -> float:
        """2 x batch x output positions x weights of one position, once for each product that is computed."""
        args = call.args
        if call.name == "convolution_backward":
            gradient, source, weight = args[:3]
            products = sum(bool(wanted) for wanted in args[-1][:2])
            positions = math.prod((source if args[7] else gradient).shape[2:])
            return float(2 * products * gradient.shape[0] * positions * weight.numel())
        source, weight = args[0], args[1]
        transposed = len(args) > 6 and bool(args[6])
        positions = math.prod((source if transposed else call.outputs[0]).shape[2:])
        return float(2 * source.shape[0] * positions * weight.numel())

    def measure(self, call: OpCall) -> tuple[int, ...]:
        args = call.args
        if call.name == "convolution_backward":
            result, source, weight, bias = args[:4]
            stride, dilation, transposed, groups = args[4], args[6], args[7], args[9]
            wanted = tuple(int(bool(w)) for w in args[10])
        else:
            source, weight, bias = args[:3]
            stride, dilation, transposed, groups = args[3], args[5], args[6], args[8]
            result, wanted = call.outputs[0], ()
        return (
            *(source.shape[0], source.shape[1], result.shape[1]),
            *(*plane(source.shape[2:]), *plane(result.shape[2:]), *plane(weight.shape[2:])),
            *(max(stride), max(dilation), groups, int(bool(transposed))),
            int(bias is not None and bias != [0]),
            *wanted,
            int(has_channels_last(source) or _suggests_channels_last(weight)),
            *((t.shape[2] if t.dim() == 5 else 0) for t in (source, result, weight)),
        )

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        sizes, wanted = _read(op.shape)
        roles = [role for role, name in (("data", "to_input"), ("weight", "to_weight")) if wanted.get(name)]
        if not wanted:
            roles = ["forward"]
        flop = op.flop / max(1, len(roles)) or 1.0
        ordinary = sizes.as_gradient_of() if sizes.is_transposed else sizes
        if sizes.is_transposed:
            roles = [_AS_GRADIENT[role] for role in roles]
        pieces = [_piece(ordinary, role, flop, dtype, cores) for role in roles]
        if sizes.has_bias and not wanted:  # a kernel of its own adds it
            pieces.append(_bias_piece(sizes, dtype))
        if wanted.get("to_bias"):
            pieces.append(_bias_gradient_piece(sizes, dtype))
        return pieces

    def assumption(self, op: DescribedOp) -> str:
        if len(op.shape) < len(_FORWARD_SIZES):
            return ""
        sizes, _ = _read(op.shape)
        return _NOT_PROBED_GROUPS if sizes.slow_group_width else ""

    def substitutes(self, op: DescribedOp, piece: Piece) -> list[Piece]:
        """A volume counts as an image of all its planes, one below the other."""
        if not piece.kind.startswith(_VOLUME):
            return super().substitutes(op, piece)
        sizes, _ = _read(op.shape)
        flat = (sizes.as_gradient_of() if sizes.is_transposed else sizes)._replace(**_NO_DEPTH)
        tiles = piece.features[: len(TileFeatures._fields)]
        features = (*tiles, *_features(flat, piece.dtype, piece.bytes))
        return [piece._replace(kind=piece.kind.replace(_VOLUME, _IMAGE), features=features)]

    def gains_in_cudnn(self, piece: Piece) -> bool:
        return True

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {**convolution_image_draws.samplers(sizes), **convolution_draws.samplers(sizes)}


def sizes_of(op: DescribedOp) -> ConvolutionSizes:
    """The sizes of a call whose shape is known."""
    return _read(op.shape)[0]


def _read(shape: tuple[int, ...]) -> tuple[ConvolutionSizes, dict[str, int]]:
    """The sizes of a call, and which gradients a backward computes."""
    after = len(shape) - (len(_FORWARD_SIZES) - _LAST)
    sizes = ConvolutionSizes._make((*shape[:_LAST], *shape[after:]))
    return sizes, dict(zip(_GRADIENTS, shape[_LAST:after], strict=False))


def _suggests_channels_last(weight: Tensor) -> bool:
    """Whether cuDNN computes channels-last because of the layout of the weight, whatever the layout of the
    image."""
    from torch import channels_last, channels_last_3d
    from torch._prims_common import suggest_memory_format

    return weight.dim() >= 4 and suggest_memory_format(weight) in (channels_last, channels_last_3d)


def _piece(sizes: ConvolutionSizes, role: str, flop: float, dtype: str, cores: int) -> Piece:
    size = BYTES.get(dtype, 4)
    moved = sizes.input_elements * size + sizes.weights * size + sizes.output_elements * size
    features = (*sizes.product(role).tile_features(cores), *_features(sizes, dtype, moved))
    per_example = sizes.examples * sizes.weights * BYTES["fp32"] if role == "weight" else 0.0
    is_slow_gradient = sizes.is_depthwise and bool(sizes.channels_last) and role != "forward"
    return Piece(
        kind=f"{_VOLUME if sizes.kernel_depth else _IMAGE} {role}",
        features=features,
        flop=flop,
        bytes=moved,
        dtype=dtype,
        per_example_bytes=per_example,
        extra_bytes=_transposed_bytes(sizes, dtype, moved),
        winograd=_winograd(sizes, role, flop, dtype),
        has_few_channels=min(sizes.channels, sizes.out_channels) / sizes.groups < _FEW_CHANNELS,
        slow_group_width=sizes.slow_group_width if dtype in _TRANSPOSED_FORMATS else 0.0,
        lane_use=_POINTWISE_LANE_USE
        if sizes.kernel_height * sizes.kernel_width == 1 and dtype == "fp32"
        else 1.0,
        is_grouped=sizes.groups > 1 and not sizes.is_depthwise,
        before_hopper=_DEPTHWISE_GRADIENTS if is_slow_gradient else 1.0,
        tiles=sizes.product(role).tiles if role == "forward" and sizes.groups == 1 else 0.0,
    )


def _features(sizes: ConvolutionSizes, dtype: str, moved: float) -> tuple[float, ...]:
    """The features in addition to those of the product."""
    plane = sizes.one_plane()
    own = ConvolutionFeatures(
        log_examples=log2(plane.examples),
        log_group_channels=log2(plane.channels / plane.groups),
        log_group_out_channels=log2(plane.out_channels / plane.groups),
        log_out_height=log2(plane.out_height),
        log_out_width=log2(plane.out_width),
        log_kernel_height=log2(plane.kernel_height),
        log_kernel_width=log2(plane.kernel_width),
        stride=float(plane.stride),
        dilation=float(plane.dilation),
        log_groups=log2(plane.groups),
        is_depthwise=float(plane.is_depthwise),
        even_channels=evenness(plane.channels),
        even_out_channels=evenness(plane.out_channels),
        even_out_height=evenness(plane.out_height),
        out_height_by_seven=float(plane.out_height % 7 == 0),
        log_bytes=log2(moved),
        number_format=number_format(dtype),
        channels_last=float(plane.channels_last),
    )
    if not sizes.kernel_depth:
        return own
    return (*own, *VolumeFeatures(log2(sizes.out_depth), log2(sizes.kernel_depth)))


def _winograd(sizes: ConvolutionSizes, role: str, flop: float, dtype: str) -> Winograd | None:
    """3 x 3 in fp32, step by step over the image, with numbers of channels that fill the kernel's tiles."""
    is_square = sizes.kernel_height == sizes.kernel_width == 3
    is_plain = sizes.stride == sizes.dilation == sizes.groups == 1
    is_even = sizes.channels % 16 == 0 and sizes.out_channels % 16 == 0
    if not (dtype == "fp32" and is_square and is_plain and is_even):
        return None
    positions = sizes.out_height * sizes.out_width
    small, large = (_padded_to(sizes, tile) / positions for tile in (2, 4))
    transformed = BYTES[dtype] * large * (sizes.input_elements + sizes.output_elements)
    return Winograd(
        small_flop=0.0 if role == "weight" else flop * small / _SMALL_TILES,
        large_flop=flop * large / _LARGE_TILES,
        large_bytes=_TRANSFORM_PASSES * transformed,
    )


def _padded_to(sizes: ConvolutionSizes, tile: int) -> int:
    """The results of an image if its sides were multiples of a tile's."""
    return math.ceil(sizes.out_height / tile) * math.ceil(sizes.out_width / tile) * tile * tile


def _transposed_bytes(sizes: ConvolutionSizes, dtype: str, moved: float) -> float:
    """What cuDNN moves to transpose tensors: its tensor cores' kernels need channels last."""
    is_as_needed = sizes.channels_last or sizes.is_depthwise or dtype not in _TRANSPOSED_FORMATS
    return 0.0 if is_as_needed else _TRANSPOSITION * moved


def _bias_piece(sizes: ConvolutionSizes, dtype: str) -> Piece:
    """Adding the bias to the output."""
    elements, size = sizes.output_elements, BYTES.get(dtype, 4)
    moved = float(elements * size)
    added = PlainOp("aten.add_", "streaming", dtype, (elements, 1, 2), float(elements), moved, moved)
    return streaming_piece("streaming", added, dtype)


def _bias_gradient_piece(sizes: ConvolutionSizes, dtype: str) -> Piece:
    """Summing the gradient over examples and positions."""
    elements, channels, size = sizes.output_elements, sizes.out_channels, BYTES.get(dtype, 4)
    shape = (channels, elements // max(channels, 1), 1, 2)
    read, written = float(elements * size), float(channels * size)
    summed = PlainOp("aten.sum", "reduction", dtype, shape, float(elements), read, written)
    return reduction_piece(summed, dtype)
