"""A small hand for writing vector code: LLVM's instructions through llvmlite, in vectors as wide as this processor's.

Everything here writes instructions; nothing computes. llvmlite brings LLVM along in its wheel, so no compiler is needed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]

F32, F64, I1, I32, I64 = ir.FloatType(), ir.DoubleType(), ir.IntType(1), ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType()
Value = Any


@functools.cache
def host() -> tuple[int, int]:
    """Floats in a vector of this processor, and how many vector registers it has."""
    features = dict(binding.get_host_cpu_features())
    if features.get("avx512f") and features.get("avx512vl"):
        return 16, 32
    if features.get("avx2") and features.get("fma"):
        return 8, 16
    return 4, 32 if binding.get_default_triple().startswith(("aarch64", "arm64")) else 16


@functools.cache
def _target() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features().flatten()
    # LLVM halves vectors on some processors for fear of their clock; a kernel that does nothing but multiply wants them whole.
    wide = features + ",-prefer-256-bit" if host()[0] == 16 else features
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=wide, opt=3, jit=True
    )


class Compiled:
    """Machine code in memory; it lives as long as this does."""

    def __init__(self, module: ir.Module) -> None:
        target = _target()
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        options = binding.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = (
            False  # done by hand
        )
        builder = binding.create_pass_builder(target, options)
        builder.getModulePassManager().run(parsed, builder)
        self.parsed = parsed
        self._engine = binding.create_mcjit_compiler(parsed, target)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        return int(self._engine.get_function_address(name))

    def assembly(self) -> str:
        return str(_target().emit_assembly(self.parsed))


class Emitter:
    """Writes functions of one argument (a table of 64-bit slots) into a module."""

    def __init__(self) -> None:
        self.width, self.registers = host()
        self.module = ir.Module()
        self.module.triple = binding.get_default_triple()
        self.floats, self.ints, self.bits = (ir.VectorType(kind, self.width) for kind in (F32, I32, I1))
        self.b = ir.IRBuilder()
        self._slots: dict[str, int] = {}

    @contextlib.contextmanager
    def function(self, name: str, slots: Sequence[str]) -> Iterator[None]:
        """`slots` names the table's entries; the body must not return by itself."""
        made = ir.Function(self.module, ir.FunctionType(I64, [POINTER]), name)
        self._slots = {slot: number for number, slot in enumerate(slots)}
        self._table = made.args[0]
        entry = made.append_basic_block("entry")
        start = made.append_basic_block("start")
        self._entry = ir.IRBuilder(entry)
        self._leave = made.append_basic_block("leave")
        self.b.position_at_end(start)
        self._answer = self.local(I64, self.i(0))
        yield
        self.b.branch(self._leave)
        self.b.position_at_end(self._leave)
        self.b.ret(self.b.load(self._answer, typ=I64))
        self._entry.branch(start)

    def answer(self, value: Value) -> None:
        self.b.store(value, self._answer)

    def leave_when(self, condition: Value) -> None:
        go_on = self.b.append_basic_block("on")
        self.b.cbranch(condition, self._leave, go_on)
        self.b.position_at_end(go_on)

    # values

    def i(self, number: int) -> Value:
        return ir.Constant(I64, number)

    def f(self, number: float) -> Value:
        return ir.Constant(F32, number)

    def f64(self, number: float) -> Value:
        return ir.Constant(F64, number)

    def lanes(self, numbers: Sequence[float]) -> Value:
        return ir.Constant(self.floats, [ir.Constant(F32, float(number)) for number in numbers])

    def whole(self, numbers: Sequence[int]) -> Value:
        return ir.Constant(self.ints, [ir.Constant(I32, number) for number in numbers])

    def flags(self, numbers: Sequence[bool]) -> Value:
        return ir.Constant(self.bits, [ir.Constant(I1, int(number)) for number in numbers])

    def same(self, number: float) -> Value:
        return self.lanes([number] * self.width)

    def local(self, kind: Any, value: Value) -> Value:
        """A variable; LLVM keeps it in a register."""
        slot = self._entry.alloca(kind)
        self.b.store(value, slot)
        return slot

    def get(self, slot: Value, kind: Any = None) -> Value:
        return self.b.load(slot, typ=kind or self.floats)

    def set(self, slot: Value, value: Value) -> None:
        self.b.store(value, slot)

    def slot(self, name: str, kind: Any = POINTER) -> Value:
        return self.b.load(self.b.gep(self._table, [self.i(self._slots[name])], source_etype=I64), typ=kind)

    # memory

    def at(self, base: Value, index: Value, kind: Any = F32) -> Value:
        return self.b.gep(base, [index], source_etype=kind)

    def load(self, base: Value, index: Value, kind: Any = F32) -> Value:
        return self.b.load(self.at(base, index, kind), typ=kind, align=8 if kind in (F64, I64) else 4)

    def store(self, value: Value, base: Value, index: Value, kind: Any = F32) -> None:
        self.b.store(value, self.at(base, index, kind), align=8 if kind in (F64, I64) else 4)

    def vload(self, base: Value, index: Value) -> Value:
        return self.b.load(self.at(base, index), typ=self.floats, align=4)

    def vstore(self, value: Value, base: Value, index: Value, kind: Any = F32) -> None:
        self.b.store(value, self.at(base, index, kind), align=4)

    def vload_some(self, base: Value, index: Value, count: int) -> Value:
        """The first `count` lanes, 0 in the others; nothing beyond is touched."""
        if count >= self.width:
            return self.vload(base, index)
        kind = f"v{self.width}f32"
        flags = self.flags([lane < count for lane in range(self.width)])
        arguments = [self.at(base, index), ir.Constant(I32, 4), flags, self.same(0)]
        return self._call(f"llvm.masked.load.{kind}.p0", self.floats, arguments)

    def broadcast(self, base: Value, index: Value) -> Value:
        return self.splat(self.load(base, index))

    def splat(self, scalar: Value, kind: Any = None) -> Value:
        kind = kind or self.floats
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(
            one,
            ir.Constant(kind, ir.Undefined),
            ir.Constant(ir.VectorType(I32, self.width), [0] * self.width),
        )

    # arithmetic

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self._call(f"llvm.fma.{_suffix(a.type)}", a.type, [a, b, c])

    def sqrt(self, a: Value) -> Value:
        return self._call(f"llvm.sqrt.{_suffix(a.type)}", a.type, [a])

    def smallest(self, a: Value, b: Value) -> Value:
        return self.b.select(self.b.fcmp_ordered("<", a, b), a, b)

    def largest(self, a: Value, b: Value) -> Value:
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def log(self, scalar: Value) -> Value:
        """Of one number, by the system's own mathematics library."""
        return self._call("llvm.log.f32", F32, [scalar])

    def total(self, vector: Value) -> Value:
        return self._call(
            f"llvm.vector.reduce.fadd.v{self.width}f32",
            F32,
            [ir.Constant(F32, -0.0), vector],
            fastmath=("reassoc",),
        )

    def peak(self, vector: Value) -> Value:
        return self._call(f"llvm.vector.reduce.fmax.v{self.width}f32", F32, [vector])

    def compress(self, vector: Value, flags: Value) -> Value:
        """The flagged lanes of whole numbers, moved together to the front."""
        name = f"llvm.experimental.vector.compress.v{self.width}i32"
        return self._call(name, self.ints, [vector, flags, ir.Constant(self.ints, ir.Undefined)])

    def count(self, flags: Value) -> Value:
        kind = ir.IntType(self.width)
        return self.b.zext(self._call(f"llvm.ctpop.i{self.width}", kind, [self.b.bitcast(flags, kind)]), I64)

    def sum(self, values: Sequence[Value]) -> Value:
        """As a tree, so that no sum waits for all the others."""
        left = list(values)
        while len(left) > 1:
            left = [
                self.b.fadd(left[i], left[i + 1]) if i + 1 < len(left) else left[i]
                for i in range(0, len(left), 2)
            ]
        return left[0]

    def exp(self, x: Value) -> Value:
        """Cephes' expf: 2 to a whole power times a polynomial, right to about one unit in the last place."""
        b = self.b
        x = self.largest(self.smallest(x, self.same(88.0)), self.same(-87.0))
        whole = self._call(
            f"llvm.floor.v{self.width}f32",
            self.floats,
            [self.fma(x, self.same(1.44269504088896341), self.same(0.5))],
        )
        r = self.fma(whole, self.same(-0.693359375), x)
        r = self.fma(whole, self.same(2.12194440e-4), r)
        y = self.same(1.9875691500e-4)
        for coefficient in (
            1.3981999507e-3,
            8.3334519073e-3,
            4.1665795894e-2,
            1.6666665459e-1,
            5.0000001201e-1,
        ):
            y = self.fma(y, r, self.same(coefficient))
        y = self.fma(y, b.fmul(r, r), b.fadd(r, self.same(1.0)))
        power = b.shl(
            b.add(b.fptosi(whole, self.ints), self.whole([127] * self.width)), self.whole([23] * self.width)
        )
        return b.fmul(y, b.bitcast(power, self.floats))

    def sigmoid(self, x: Value) -> Value:
        return self.b.fdiv(self.same(1), self.b.fadd(self.same(1), self.exp(self.b.fsub(self.same(0), x))))

    def tanh(self, x: Value) -> Value:
        """Cephes' tanhf: a polynomial near 0, where 1 - 2 / (exp(2x) + 1) would lose all its figures."""
        b = self.b
        square = b.fmul(x, x)
        y = self.same(-5.70498872745e-3)
        for coefficient in (2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1):
            y = self.fma(y, square, self.same(coefficient))
        near = self.fma(b.fmul(y, square), x, x)
        far = b.fsub(self.same(1), b.fdiv(self.same(2), b.fadd(self.exp(b.fadd(x, x)), self.same(1))))
        return b.select(b.fcmp_ordered("<", square, self.same(0.625**2)), near, far)

    def relu(self, x: Value) -> Value:
        return self.b.select(
            self.b.fcmp_ordered(">", self.same(0), x), self.same(0), x
        )  # lets NaN through, so that it is noticed

    def transpose(self, rows: Sequence[Value]) -> list[Value]:
        """A square block of vectors, turned by exchanging ever larger halves."""
        out, step = list(rows), 1
        while step < self.width:
            low = [lane if not lane & step else self.width + lane - step for lane in range(self.width)]
            high = [lane + step if not lane & step else self.width + lane for lane in range(self.width)]
            for i in range(self.width):
                if not i & step:
                    a, b = out[i], out[i + step]
                    out[i], out[i + step] = self._shuffle(a, b, low), self._shuffle(a, b, high)
            step *= 2
        return out

    # flow

    @contextlib.contextmanager
    def loop(self, first: Value, stop: Value, step: int = 1) -> Iterator[Value]:
        """Counts up from `first` to before `stop`."""
        b = self.b
        counter = self.local(I64, first)
        head, body, done = (b.append_basic_block(name) for name in ("head", "body", "done"))
        b.branch(head)
        b.position_at_end(head)
        index = b.load(counter, typ=I64)
        b.cbranch(b.icmp_signed("<", index, stop), body, done)
        b.position_at_end(body)
        yield index
        b.store(b.add(b.load(counter, typ=I64), self.i(step)), counter)
        b.branch(head)
        b.position_at_end(done)

    def each(self, count: int, body: Callable[[Value, int], None], unroll: int = 8) -> None:
        """The same for 0 to count - 1: written out when they are few, else as a loop."""
        if count <= unroll:
            for number in range(count):
                body(self.i(number), number)
            return
        with self.loop(self.i(0), self.i(count)) as index:
            body(index, 0)

    def _shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        return self.b.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, self.width), list(lanes)))

    def _call(self, name: str, kind: Any, arguments: Sequence[Value], fastmath: Sequence[str] = ()) -> Value:
        known = self.module.globals.get(name)
        declared = known or ir.Function(self.module, ir.FunctionType(kind, [a.type for a in arguments]), name)
        return self.b.call(declared, arguments, fastmath=fastmath)


def _suffix(kind: Any) -> str:
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}f32"
    return "f64" if kind == F64 else "f32"
