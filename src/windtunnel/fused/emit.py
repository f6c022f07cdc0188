"""Emits LLVM IR through llvmlite in vectors as wide as this processor's registers, and compiles it in memory.

Every method of `Emitter` appends instructions; none computes a result itself. The llvmlite wheel contains
LLVM, so no compiler has to be installed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llvmlite import binding, ir  # type: ignore[import-untyped]

F32, F64, I1, I32, I64 = ir.FloatType(), ir.DoubleType(), ir.IntType(1), ir.IntType(32), ir.IntType(64)
POINTER = ir.PointerType()
_EXP_POLYNOMIAL = (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_TANH_POLYNOMIAL = (2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
Value = Any  # llvmlite has no type annotations: an SSA value ...
LlvmType = Any  # ... and the type of one


@functools.cache
def vector_registers() -> tuple[int, int]:
    """The float32 lanes of a vector register of this processor, and the number of such registers."""
    features = dict(binding.get_host_cpu_features())
    if features.get("avx512f") and features.get("avx512vl"):
        return 16, 32
    if features.get("avx2") and features.get("fma"):
        return 8, 16
    return 4, 32 if binding.get_default_triple().startswith(("aarch64", "arm64")) else 16


@functools.cache
def _target_machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features().flatten()
    # On some processors LLVM prefers 256-bit vectors because 512-bit ones lower the clock. These kernels
    # consist of multiply-adds, for which the full width is faster anyway.
    if vector_registers()[0] == 16:
        features += ",-prefer-256-bit"
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, opt=3, jit=True
    )


class CompiledModule:
    """Machine code in memory. It is freed together with this object."""

    def __init__(self, module: ir.Module) -> None:
        target = _target_machine()
        parsed = binding.parse_assembly(str(module))
        parsed.verify()
        options = binding.create_pipeline_tuning_options(speed_level=2)
        # The emitted code is vectorized and unrolled already.
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        builder = binding.create_pass_builder(target, options)
        builder.getModulePassManager().run(parsed, builder)
        self.parsed = parsed
        self._engine = binding.create_mcjit_compiler(parsed, target)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        return int(self._engine.get_function_address(name))

    def assembly(self) -> str:
        return str(_target_machine().emit_assembly(self.parsed))


class Emitter:
    """Emits functions into one LLVM module. Each function takes a pointer to a table of 64-bit arguments.

    `b` is llvmlite's IRBuilder at the current position. `width` is the number of float32 lanes of a vector.
    """

    def __init__(self) -> None:
        self.width, self.registers = vector_registers()
        self.module = ir.Module()
        self.module.triple = binding.get_default_triple()
        self.floats, self.ints, self.bits = (
            ir.VectorType(llvm_type, self.width) for llvm_type in (F32, I32, I1)
        )
        self.b = ir.IRBuilder()
        self._argument_index: dict[str, int] = {}

    @contextlib.contextmanager
    def function(self, name: str, arguments: Sequence[str]) -> Iterator[None]:
        """Emits the body inside the `with`. `arguments` names the entries of the argument table in order.

        The body must not emit `ret`: use `set_result` and `return_if`.
        """
        function = ir.Function(self.module, ir.FunctionType(I64, [POINTER]), name)
        self._argument_index = {argument: index for index, argument in enumerate(arguments)}
        self._table = function.args[0]
        entry = function.append_basic_block("entry")
        start = function.append_basic_block("start")
        self._entry = ir.IRBuilder(entry)
        self._exit = function.append_basic_block("leave")
        self.b.position_at_end(start)
        self._result = self.variable(I64, self.i64(0))
        yield
        self.b.branch(self._exit)
        self.b.position_at_end(self._exit)
        self.b.ret(self.b.load(self._result, typ=I64))
        self._entry.branch(start)

    def set_result(self, value: Value) -> None:
        self.b.store(value, self._result)

    def return_if(self, condition: Value) -> None:
        following = self.b.append_basic_block("on")
        self.b.cbranch(condition, self._exit, following)
        self.b.position_at_end(following)

    # constants and variables

    def i64(self, number: int) -> Value:
        return ir.Constant(I64, number)

    def f32(self, number: float) -> Value:
        return ir.Constant(F32, number)

    def f64(self, number: float) -> Value:
        return ir.Constant(F64, number)

    def f32_vector(self, numbers: Sequence[float]) -> Value:
        return ir.Constant(self.floats, [ir.Constant(F32, float(number)) for number in numbers])

    def i32_vector(self, numbers: Sequence[int]) -> Value:
        return ir.Constant(self.ints, [ir.Constant(I32, number) for number in numbers])

    def mask_constant(self, numbers: Sequence[bool]) -> Value:
        return ir.Constant(self.bits, [ir.Constant(I1, int(number)) for number in numbers])

    def full(self, number: float) -> Value:
        """A vector constant with the same number in every lane."""
        return self.f32_vector([number] * self.width)

    def variable(self, llvm_type: LlvmType, value: Value) -> Value:
        """A stack variable in the entry block, which LLVM promotes to a register."""
        variable = self._entry.alloca(llvm_type)
        self.b.store(value, variable)
        return variable

    def read(self, variable: Value, llvm_type: LlvmType | None = None) -> Value:
        return self.b.load(variable, typ=llvm_type or self.floats)

    def write(self, variable: Value, value: Value) -> None:
        self.b.store(value, variable)

    def argument(self, name: str, llvm_type: LlvmType = POINTER) -> Value:
        """An entry of the argument table."""
        index = self.i64(self._argument_index[name])
        return self.b.load(self.b.gep(self._table, [index], source_etype=I64), typ=llvm_type)

    # memory

    def address(self, base: Value, index: Value, llvm_type: LlvmType = F32) -> Value:
        return self.b.gep(base, [index], source_etype=llvm_type)

    def load(self, base: Value, index: Value, llvm_type: LlvmType = F32) -> Value:
        return self.b.load(
            self.address(base, index, llvm_type), typ=llvm_type, align=8 if llvm_type in (F64, I64) else 4
        )

    def store(self, value: Value, base: Value, index: Value, llvm_type: LlvmType = F32) -> None:
        self.b.store(value, self.address(base, index, llvm_type), align=8 if llvm_type in (F64, I64) else 4)

    def vload(self, base: Value, index: Value) -> Value:
        return self.b.load(self.address(base, index), typ=self.floats, align=4)

    def vstore(self, value: Value, base: Value, index: Value, llvm_type: LlvmType = F32) -> None:
        self.b.store(value, self.address(base, index, llvm_type), align=4)

    def vload_first(self, base: Value, index: Value, count: int) -> Value:
        """Loads the first `count` lanes and no memory beyond them; the other lanes are 0."""
        if count >= self.width:
            return self.vload(base, index)
        mask = self.mask_constant([lane < count for lane in range(self.width)])
        arguments = [self.address(base, index), ir.Constant(I32, 4), mask, self.full(0)]
        return self._call(f"llvm.masked.load.v{self.width}f32.p0", self.floats, arguments)

    def load_splat(self, base: Value, index: Value) -> Value:
        return self.splat(self.load(base, index))

    def splat(self, scalar: Value, llvm_type: LlvmType | None = None) -> Value:
        llvm_type = llvm_type or self.floats
        one = self.b.insert_element(ir.Constant(llvm_type, ir.Undefined), scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(
            one,
            ir.Constant(llvm_type, ir.Undefined),
            ir.Constant(ir.VectorType(I32, self.width), [0] * self.width),
        )

    # arithmetic

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self._call(f"llvm.fma.{_suffix(a.type)}", a.type, [a, b, c])

    def sqrt(self, a: Value) -> Value:
        return self._call(f"llvm.sqrt.{_suffix(a.type)}", a.type, [a])

    def minimum(self, a: Value, b: Value) -> Value:
        return self.b.select(self.b.fcmp_ordered("<", a, b), a, b)

    def maximum(self, a: Value, b: Value) -> Value:
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def log(self, scalar: Value) -> Value:
        """The logarithm of a scalar, from the C library."""
        return self._call("llvm.log.f32", F32, [scalar])

    def reduce_add(self, vector: Value) -> Value:
        return self._call(
            f"llvm.vector.reduce.fadd.v{self.width}f32",
            F32,
            [ir.Constant(F32, -0.0), vector],
            fastmath=("reassoc",),
        )

    def reduce_max(self, vector: Value) -> Value:
        return self._call(f"llvm.vector.reduce.fmax.v{self.width}f32", F32, [vector])

    def compress(self, vector: Value, mask: Value) -> Value:
        """Moves the integer lanes selected by the mask to the front."""
        name = f"llvm.experimental.vector.compress.v{self.width}i32"
        return self._call(name, self.ints, [vector, mask, ir.Constant(self.ints, ir.Undefined)])

    def popcount(self, mask: Value) -> Value:
        """The number of lanes that the mask selects."""
        bits = ir.IntType(self.width)
        return self.b.zext(self._call(f"llvm.ctpop.i{self.width}", bits, [self.b.bitcast(mask, bits)]), I64)

    def tree_sum(self, values: Sequence[Value]) -> Value:
        """Adds in pairs, which makes the chain of dependent additions short."""
        terms = list(values)
        while len(terms) > 1:
            terms = [
                self.b.fadd(terms[i], terms[i + 1]) if i + 1 < len(terms) else terms[i]
                for i in range(0, len(terms), 2)
            ]
        return terms[0]

    def exp(self, x: Value) -> Value:
        """Cephes' expf: a power of 2 times a polynomial; the error is about one unit in the last place."""
        b = self.b
        x = self.maximum(self.minimum(x, self.full(88.0)), self.full(-87.0))
        whole = self._call(
            f"llvm.floor.v{self.width}f32",
            self.floats,
            [self.fma(x, self.full(1.44269504088896341), self.full(0.5))],
        )
        r = self.fma(whole, self.full(-0.693359375), x)
        r = self.fma(whole, self.full(2.12194440e-4), r)
        y = self.full(1.9875691500e-4)
        for coefficient in _EXP_POLYNOMIAL:
            y = self.fma(y, r, self.full(coefficient))
        y = self.fma(y, b.fmul(r, r), b.fadd(r, self.full(1.0)))
        power = b.shl(
            b.add(b.fptosi(whole, self.ints), self.i32_vector([127] * self.width)),
            self.i32_vector([23] * self.width),
        )
        return b.fmul(y, b.bitcast(power, self.floats))

    def sigmoid(self, x: Value) -> Value:
        return self.b.fdiv(self.full(1), self.b.fadd(self.full(1), self.exp(self.b.fsub(self.full(0), x))))

    def tanh(self, x: Value) -> Value:
        """Cephes' tanhf: a polynomial near 0, where 1 - 2 / (exp(2x) + 1) would cancel."""
        b = self.b
        square = b.fmul(x, x)
        y = self.full(-5.70498872745e-3)
        for coefficient in _TANH_POLYNOMIAL:
            y = self.fma(y, square, self.full(coefficient))
        near = self.fma(b.fmul(y, square), x, x)
        far = b.fsub(self.full(1), b.fdiv(self.full(2), b.fadd(self.exp(b.fadd(x, x)), self.full(1))))
        return b.select(b.fcmp_ordered("<", square, self.full(0.625**2)), near, far)

    def relu(self, x: Value) -> Value:
        """max(x, 0); a NaN stays a NaN, so that the loss shows it."""
        return self.b.select(self.b.fcmp_ordered(">", self.full(0), x), self.full(0), x)

    def transpose(self, rows: Sequence[Value]) -> list[Value]:
        """Transposes a square block of vectors by shuffles of distance 1, 2, 4, ..."""
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

    # control flow

    @contextlib.contextmanager
    def loop(self, first: Value, stop: Value, step: int = 1) -> Iterator[Value]:
        """A loop whose index runs from `first` to below `stop`."""
        b = self.b
        counter = self.variable(I64, first)
        head, body, done = (b.append_basic_block(name) for name in ("head", "body", "done"))
        b.branch(head)
        b.position_at_end(head)
        index = b.load(counter, typ=I64)
        b.cbranch(b.icmp_signed("<", index, stop), body, done)
        b.position_at_end(body)
        yield index
        b.store(b.add(b.load(counter, typ=I64), self.i64(step)), counter)
        b.branch(head)
        b.position_at_end(done)

    def repeat(self, count: int, body: Callable[[Value, int], None], unroll: int = 8) -> None:
        """`body(index, number)` for 0 to count - 1: unrolled if there are few, else a loop with number 0."""
        if count <= unroll:
            for number in range(count):
                body(self.i64(number), number)
            return
        with self.loop(self.i64(0), self.i64(count)) as index:
            body(index, 0)

    def _shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        return self.b.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, self.width), list(lanes)))

    def _call(
        self, name: str, returns: LlvmType, arguments: Sequence[Value], fastmath: Sequence[str] = ()
    ) -> Value:
        """Calls an intrinsic, which is declared on first use."""
        signature = ir.FunctionType(returns, [argument.type for argument in arguments])
        declared = self.module.globals.get(name) or ir.Function(self.module, signature, name)
        return self.b.call(declared, arguments, fastmath=fastmath)


def _suffix(llvm_type: LlvmType) -> str:
    if isinstance(llvm_type, ir.VectorType):
        return f"v{llvm_type.count}f32"
    return "f64" if llvm_type == F64 else "f32"
