"""The contract of every family of ops, and a toy family that proves that one file is enough to add one."""

from __future__ import annotations

import dataclasses
import itertools
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import windtunnel as wt
from windtunnel import families
from windtunnel.calibration import clock, fit, probe
from windtunnel.calibration.case_sampler import CaseSampler, all_weights
from windtunnel.families import FAMILIES, DescribedOp, Family, OpCall, Piece, registry
from windtunnel.families.drawing import Limits, ProbeCase, Sizes, TensorSpec
from windtunnel.families.features import log2
from windtunnel.forecast import profile_format
from windtunnel.forecast.compiled import fuse
from windtunnel.forecast.forecast import forecast_step
from windtunnel.forecast.price import roofline_of
from windtunnel.forecast.profile import feature_names
from windtunnel.machine import profiles
from windtunnel.measurement import families as measured
from windtunnel.prediction import trace
from windtunnel.trace import Op
from windtunnel.trace.record import Observer

EVERY = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
GPU = Limits(flop=1e9, elements=4_000_000, precisions=("fp32", "bf16"), target="gpu")
CPU = Limits(flop=1e9, elements=4_000_000, precisions=("fp32",))
CASES = 12


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[tuple[ProbeCase, tuple[Op, ...]]]]:
    """Some cases of everything that a probe draws, and their ops on a GPU."""
    with Observer("gpu") as observer:
        return {name: [(case, ops_of(observer, case)) for case in cases_of(name)] for name in all_weights()}


def cases_of(name: str) -> Iterator[ProbeCase]:
    return itertools.islice(CaseSampler(GPU, 1).draw_all({name: 1}), CASES)


def ops_of(observer: Observer, case: ProbeCase) -> tuple[Op, ...]:
    return observer.ops_of(lambda: clock.make_empty(case.tensors), case.call)


def own_ops(family: Family, drawn: Any) -> list[Op]:
    """All drawn ops of a family, whatever case they occurred in."""
    return [op for cases in drawn.values() for _, ops in cases for op in ops if op.family == family.name]


def beginnings(family: Family) -> tuple[str, ...]:
    return (*family.names, *family.prefixes)


def test_every_family_has_its_own_name() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)
    assert not {families.OTHER, *families.NOT_ON_DEVICE} & set(names), "these are no families"
    assert [registry.get(name) for name in names] == list(FAMILIES)


@EVERY
def test_a_family_recognises_its_ops(family: Family) -> None:
    assert beginnings(family)
    assert all(families.family_of(name) == family.name for name in family.names)
    assert all(families.family_of(prefix) == family.name for prefix in family.prefixes)
    assert families.family_of("an_op_that_nobody_knows") == families.OTHER


@EVERY
def test_no_other_family_claims_its_ops(family: Family) -> None:
    for other in FAMILIES:
        if other is not family:
            assert not family.names & other.names
            assert not any(prefix.startswith(other.prefixes) for prefix in family.prefixes)
            assert not any(name.startswith(other.library_ops) for name in family.library_ops)


@EVERY
def test_a_profiler_knows_the_family_by_its_library_ops_and_kernels(family: Family) -> None:
    for name in family.library_ops:
        assert measured.family_of_op(f"aten::{name}") in (family.name, measured.HOST)
    if family.kernels:
        assert measured.family_of_kernel(f"void {family.kernels[0]}_kernel<float>", "") == family.name


@EVERY
def test_sizes_and_features_have_names(family: Family) -> None:
    assert family.sizes and len(set(family.sizes)) == len(family.sizes)
    assert family.kinds
    for kind, names in family.kinds.items():
        assert registry.of_kind(kind) is family, "a kind's first word is the family's name"
        assert names and len(set(names)) == len(names) and "threads" not in names


@EVERY
def test_a_probe_draws_cases_of_the_family(family: Family, drawn: Any) -> None:
    assert family.draws and all(weight > 0 for weight in family.draws.values())
    for name in (*family.draws, *family.gpu_draws):
        assert len(drawn[name]) == CASES
        for case, ops in drawn[name]:
            assert case.family == family.name and case.elements <= GPU.elements
            main = probe.main_op(case, [op for op in ops if op.phase != "backward"])
            assert main is not None and main.family == family.name, name
            assert case.has_backward == any(op.phase == "backward" for op in ops), name


@EVERY
def test_every_drawn_op_has_as_many_sizes_as_names(family: Family, drawn: Any) -> None:
    ops = own_ops(family, drawn)
    assert ops
    for op in ops:
        assert len(op.shape) == len(family.size_names(op.name)), op
        assert all(isinstance(size, int) and size >= 0 for size in op.shape), op
        assert families.has_known_sizes(op)


@EVERY
def test_no_piece_is_negative_and_its_features_are_those_of_its_kind(family: Family, drawn: Any) -> None:
    kinds = set()
    for op in own_ops(family, drawn):
        assert op.flop >= 0 and op.read_bytes >= 0 and op.written_bytes > 0
        for piece in families.pieces_of(op, 132):
            assert piece.flop >= 0 and piece.bytes > 0 and piece.per_example_bytes >= 0
            assert all(math.isfinite(value) for value in piece.features), piece
            names = registry.of_kind(piece.kind).kinds[piece.kind]
            assert len(piece.features) == len(names)
            assert getattr(piece.features, "_fields", names) == names, "features carry their names"
            assert registry.of_kind(piece.kind).is_shared(piece) in (True, False)
            kinds.add(piece.kind)
    assert kinds & set(family.kinds)


@EVERY
def test_a_number_format_changes_no_features_but_its_own(family: Family, drawn: Any) -> None:
    for op in own_ops(family, drawn)[:20]:
        kinds = [[piece.kind for piece in families.pieces_of(op, 132, dtype)] for dtype in ("fp32", "bf16")]
        assert kinds[0] == kinds[1]


@EVERY
def test_workspace_is_never_negative(family: Family, drawn: Any) -> None:
    coefficients = profiles.load("h200").workspace_coefficients
    for op in own_ops(family, drawn):
        assert family.workspace_bytes(op, 10.0, coefficients) >= 0
        unknown = dataclasses.replace(op, shape=())
        assert family.workspace_bytes(unknown, 10.0, coefficients) >= 0, "unknown sizes are no error"


@EVERY
@pytest.mark.parametrize("machine", ["h200", "ice-lake-2-cores"])
def test_the_profiles_of_the_catalogue_know_the_family(family: Family, machine: str) -> None:
    kinds = profiles.load(machine).kinds
    assert set(kinds) & set(family.kinds)
    for name in set(kinds) & set(family.kinds):
        assert kinds[name].features == (*family.kinds[name], "threads") == feature_names(name)


def test_importing_families_and_pricing_needs_no_framework() -> None:
    code = (
        "import sys, windtunnel.families, windtunnel.forecast.forecast, windtunnel.machine.profiles as p; "
        "p.load('h200'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_rules_of_a_family_are_written_in_its_own_file_only() -> None:
    """No file of tracing, pricing or probing asks for the name of a family with rules of its own."""
    source = Path(families.__file__).parent.parent
    special = ('"recurrent"', '"fused"', '"attention"', '"convolution"', '"matmul"')
    allowed = {
        "recurrent_workspace.py": ('"recurrent"',),
        "compiled.py": ('"fused"',),  # the name of a compiled kernel
        "lower.py": ('"fused"',),  # an option of optimisers
        "kernels.py": ('"convolution"',),  # the name of an op that a compiler calls
        "generated_kernels.py": ('"convolution"',),  # by which a compiler chooses the layout of images
        "memory.py": ('"matmul"', '"convolution"'),  # workspaces that cuBLAS and cuDNN keep for a whole step
    }
    # A table of measured costs by family, as the catalogue has one for training.
    allowed["inference_costs.py"] = ('"attention"', '"convolution"', '"matmul"')
    for folder in ("trace", "forecast", "calibration"):
        for path in (source / folder).glob("*.py"):
            text = path.read_text()
            assert not [w for w in special if w in text and w not in allowed.get(path.name, ())], path


# A toy family: its op rolls a tensor along its rows. All about it is in this class and one function.


class RollFeatures(NamedTuple):
    log_rows: float
    log_columns: float


class Rolling(Family):
    name = "rolling"
    names = frozenset({"roll_rows"})
    kernels = ("roll_rows",)
    sizes = ("rows", "columns")
    kinds: Mapping[str, tuple[str, ...]] = {"rolling": RollFeatures._fields}
    draws: Mapping[str, int] = {"rolling": 1}

    def flop(self, call: OpCall) -> float:
        return 3.0 * call.outputs[0].numel()

    def measure(self, call: OpCall) -> tuple[int, ...]:
        rows, columns = call.inputs[0].shape
        return rows, columns

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        rows, columns = op.shape
        features = RollFeatures(log2(rows), log2(columns))
        return [Piece("rolling", features, op.flop, op.read_bytes + op.written_bytes, dtype)]

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {"rolling": lambda: draw_rolling(sizes)}


def draw_rolling(sizes: Sizes) -> ProbeCase | None:
    source = TensorSpec(shape=(sizes.size(1, 1000), sizes.size(1, 1000)), dtype="fp32")
    return ProbeCase(family="rolling", precision="fp32", tensors=(source,), call=lambda t: roll_rows(t[0]))


@torch.library.custom_op("toy::roll_rows", mutates_args=())
def roll_rows(source: Tensor) -> Tensor:
    return source.roll(1, 0).clone()


@roll_rows.register_fake
def _(source: Tensor) -> Tensor:
    return torch.empty_like(source)


def rolling_job() -> wt.Workload:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(roll_rows(x))
            return y

    return wt.Workload(
        name="rolling",
        model=Net,
        batch=lambda n: torch.randn(n, 64),
        loss=lambda m, b: m(b).sum(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )


def rolling_op(target: str = "gpu") -> Op:
    return next(op for op in trace(rolling_job(), wt.Strategy(batch=32), target).ops if "roll" in op.name)


def test_an_op_of_no_family_is_priced_by_its_bytes_with_a_caution() -> None:
    assert rolling_op().family == families.OTHER
    cautions = wt.predict(rolling_job(), wt.Machine.named("h200"), wt.Strategy(batch=32)).cautions
    assert any("of toy.roll_rows only the bytes are known" in caution for caution in cautions)


def test_one_class_is_enough_to_recognise_measure_draw_fit_and_price_a_family() -> None:
    machine, strategy = wt.Machine.named("ice-lake-2-cores"), wt.Strategy(batch=32, threads=1)
    profile = dataclasses.replace(profiles.load("ice-lake-2-cores"), cached_op_factor=1.0)
    roofline = roofline_of(machine, profile)
    with registry.including(Rolling()):
        op = rolling_op("cpu")
        assert (op.family, op.shape, op.flop) == ("rolling", (32, 64), 3 * 32 * 64)
        assert measured.family_of_kernel("roll_rows_kernel", "") == "rolling"
        timed = probe.probe_cpu(1.0, (1,), weights={"rolling": 1})
        assert {row.family for row in timed} == {"rolling"}
        slow = [dataclasses.replace(row, seconds=1000 * piece_seconds(row, roofline)) for row in timed]
        kinds = fit.fit_kinds(slow, {1: roofline}, fit.Effort(few=20, many=20, depth=2))
        learned = dataclasses.replace(profile, kinds={**profile.kinds, **kinds})
        again = profile_format.read(profile_format.plain(learned), "a copy")
        assert again.kinds["rolling"].features == ("log_rows", "log_columns", "threads")
        recorded = trace(rolling_job(), strategy, "cpu")
        before, after = (
            forecast_step(recorded, machine, strategy, each).forecast for each in (profile, again)
        )
        assert after.families["rolling"] == pytest.approx(1000 * piece_seconds(op, roofline), rel=0.05)
        assert after.step_seconds > before.step_seconds
        assert not any("roll_rows" in caution for caution in after.cautions)
    assert rolling_op().family == families.OTHER, "the registry is as before"


def piece_seconds(op: DescribedOp, roofline: Any) -> float:
    (piece,) = families.pieces_of(op, 2)
    return float(roofline.seconds(piece))


class Unreadable(Rolling):
    """Its op takes arguments that the family does not expect."""

    def measure(self, call: OpCall) -> tuple[int, ...]:
        return call.args[5].shape


def test_an_op_whose_sizes_cannot_be_read_is_priced_by_its_bytes_with_a_caution() -> None:
    strategy = wt.Strategy(batch=32)
    with registry.including(Unreadable()):
        op = rolling_op()
        assert op.shape == () and not families.has_known_sizes(op)
        assert [piece.kind for piece in families.pieces_of(op, 132)] == ["streaming"]
        cautions = wt.predict(rolling_job(), wt.Machine.named("h200"), strategy).cautions
    (caution,) = [caution for caution in cautions if "could not be read" in caution]
    assert "toy.roll_rows" in caution and "of the device's time" in caution
    share = float(caution.rpartition(": ")[2].partition("%")[0])
    assert 0 < share < 100
    with registry.including(Rolling()):
        cautions = wt.predict(rolling_job(), wt.Machine.named("h200"), strategy).cautions
        assert not any("could not be read" in caution for caution in cautions)


def test_a_compiled_kernel_with_an_op_of_unknown_sizes_has_a_caution_too() -> None:
    strategy = wt.Strategy(batch=32, execution="compiled")
    recorded = trace(wt.Workload.named("fcn5"), strategy, "gpu")
    assert all(op.shape for op in recorded.ops if op.family == "streaming")
    eager = trace(wt.Workload.named("fcn5"), wt.Strategy(batch=32), "gpu")
    ops = [dataclasses.replace(op, shape=()) if op.family == "softmax" else op for op in eager.ops]
    fused = fuse(dataclasses.replace(eager, ops=tuple(ops)))
    machine = wt.Machine.named("h200")
    cautions = forecast_step(fused, machine, strategy, profiles.load("h200")).forecast.cautions
    assert any("the sizes of fused could not be read" in caution for caution in cautions)


def test_a_probe_keeps_no_row_of_an_op_whose_sizes_cannot_be_read() -> None:
    with registry.including(Unreadable()), Observer("cpu") as observer:
        case = next(CaseSampler(CPU, 0).draw_all({"rolling": 1}))
        assert probe.main_op(case, ops_of(observer, case)) is None
