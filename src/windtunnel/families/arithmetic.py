"""Arithmetic of expensive ops that belong to no family: linear algebra, distances, deformable convolutions.

No probe has timed them, so they are priced by their roofline. On a CPU, LAPACK comes within a factor of 8 of
it: 14 routines at 256 and 768 rows, on one thread of a Xeon, reach 0.13 to 0.92 of the rate of a matrix
product. On a GPU they may take a hundred times as long, so a caution names them (`forecast/cautions.py`).

The counts are those of LAPACK Working Note 41 (Appendix C), and of Golub and Van Loan, Matrix Computations,
for eigenvalues (section 8.3) and singular values (figure 8.6.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from windtunnel.families.base import OpCall

# Products of matrices in a matrix exponential: PyTorch's Taylor polynomials and about as many squarings.
_EXPONENTIAL_PRODUCTS = 8


class _Sizes(NamedTuple):
    """A batch of matrices of `rows` x `columns`; `right` columns are solved for."""

    batch: float
    rows: float
    columns: float
    right: float
    wants_vectors: bool

    @property
    def cube(self) -> float:
        return self.batch * self.columns**3

    @property
    def tall(self) -> float:
        """The longer side times the square of the shorter side."""
        short, long = sorted((self.rows, self.columns))
        return self.batch * long * short**2

    @property
    def solved(self) -> float:
        return self.batch * self.rows**2 * self.right


def _singular_values(s: _Sizes) -> float:
    least = s.batch * min(s.rows, s.columns) ** 3
    return 14 * s.tall + 8 * least if s.wants_vectors else 4 * s.tall - 4 / 3 * least


_COUNTS: Mapping[str, Callable[[_Sizes], float]] = {
    "linalg_cholesky_ex": lambda s: s.cube / 3,
    "cholesky": lambda s: s.cube / 3,
    "cholesky_inverse": lambda s: 2 / 3 * s.cube,
    "linalg_lu_factor_ex": lambda s: 2 / 3 * s.cube,
    "linalg_lu": lambda s: 2 / 3 * s.cube,
    "linalg_ldl_factor_ex": lambda s: s.cube / 3,
    "_linalg_det": lambda s: 2 / 3 * s.cube,
    "_linalg_slogdet": lambda s: 2 / 3 * s.cube,
    "linalg_inv_ex": lambda s: 2 * s.cube,
    "_linalg_solve_ex": lambda s: 2 / 3 * s.cube + 2 * s.solved,
    "linalg_qr": lambda s: 4 * s.tall - 4 / 3 * s.batch * min(s.rows, s.columns) ** 3,
    "geqrf": lambda s: 2 * s.tall,
    "linalg_householder_product": lambda s: 2 * s.tall,
    "linalg_lstsq": lambda s: 2 * s.tall,
    "_linalg_eigh": lambda s: (9 if s.wants_vectors else 4 / 3) * s.cube,
    "linalg_eig": lambda s: 25 * s.cube,
    "_linalg_eigvals": lambda s: 10 * s.cube,
    "_linalg_svd": _singular_values,
    "linalg_pinv": lambda s: 22 * s.tall,
    "linalg_matrix_exp": lambda s: 2 * _EXPONENTIAL_PRODUCTS * s.cube,
}
# Solvers whose matrix is not their first tensor: its place.
_SOLVERS: Mapping[str, tuple[int, int]] = {
    "cholesky_solve": (1, 0),
    "linalg_lu_solve": (0, -1),
    "linalg_ldl_solve": (0, -1),
    "linalg_solve_triangular": (0, 1),
    "triangular_solve": (1, 0),
}
_TRIANGULAR = ("linalg_solve_triangular", "triangular_solve")
_BY_PRODUCT = "_euclidean_dist"  # PyTorch computes it by a matrix product
_DISTANCES = ("_cdist_forward", "_cdist_backward", "_pdist_forward", "_pdist_backward", _BY_PRODUCT)
_DEFORMABLE = ("deform_conv2d", "_deform_conv2d_backward")
NAMES = frozenset((*_COUNTS, *_SOLVERS, *_DISTANCES, *_DEFORMABLE))


# Namespaces of PyTorch's own ops. Such an op moves memory if it belongs to no family and is not listed above.
_OWN = frozenset(
    "aten prims prim torchvision fsdp c10d _c10d_functional _dtensor windtunnel generated".split()
)


def is_custom_op(op_name: str) -> bool:
    """Whether an op is a custom op of a user or a library, for which only its tensors are known."""
    return op_name.partition(".")[0] not in _OWN


def is_unprobed(op_name: str) -> bool:
    """Whether no probed op allows an estimate of this op's time. The name includes the namespace."""
    name = op_name.rpartition(".")[2]
    return name in NAMES and name != _BY_PRODUCT


def flop_of(call: OpCall) -> float:
    """The arithmetic of such an op; 0 for any other."""
    if call.name not in NAMES or not call.inputs:
        return 0.0
    if call.name in _DISTANCES:
        pairs = call.inputs[0] if call.is_backward else call.outputs[0]
        points = call.inputs[1 if call.is_backward else 0]
        return 3.0 * pairs.numel() * points.shape[-1]
    if call.name in _DEFORMABLE:
        return _deformable(call)
    if call.name in _SOLVERS:
        matrix, right = (call.inputs[place] for place in _SOLVERS[call.name])
        share = 1.0 if call.name in _TRIANGULAR else 2.0
        return share * matrix.shape[-1] * right.numel()
    return _COUNTS[call.name](_sizes(call))


def _sizes(call: OpCall) -> _Sizes:
    *batch, rows, columns = call.inputs[0].shape
    right = call.inputs[1].numel() / max(1, math.prod(batch) * rows) if len(call.inputs) > 1 else 0.0
    flags = [each for each in call.args if isinstance(each, bool)]
    return _Sizes(float(math.prod(batch)), float(rows), float(columns), right, flags[-1] if flags else True)


def _deformable(call: OpCall) -> float:
    """A convolution of sampled pixels; backward has two products more for its two gradients."""
    weight = call.inputs[2 if call.is_backward else 1]
    pixels = (call.inputs[0] if call.is_backward else call.outputs[0]).numel()
    return (4.0 if call.is_backward else 2.0) * pixels * weight.numel() / max(1, weight.shape[0])
