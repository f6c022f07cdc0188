"""Builds the CPU kernels: whole epochs in one call, or forward and backward separately for autograd."""

from __future__ import annotations

import functools
import threading
from typing import Literal

from windtunnel.fused.emit import F32, CompiledModule, Value
from windtunnel.fused.layout import ARGUMENTS, KernelSpec
from windtunnel.fused.time_loop import TimeLoop
from windtunnel.fused.update import WeightUpdate

Part = Literal["train", "module"]
_COMPILER_LOCK = threading.Lock()  # all threads share one LLVM target machine, which is not thread-safe


def compile_kernel(spec: KernelSpec, part: Part) -> CompiledModule:
    """Code for one network: `train` contains the epochs, `module` forward and backward; both have refresh."""
    with _COMPILER_LOCK:
        return _compile_kernel(spec, part)


@functools.cache
def _compile_kernel(spec: KernelSpec, part: Part) -> CompiledModule:
    builder = KernelBuilder(spec)
    return CompiledModule(builder.build_train() if part == "train" else builder.build_module())


class KernelBuilder(TimeLoop, WeightUpdate):
    """Emits the functions that Python calls; each takes the argument table."""

    def build_train(self) -> object:
        with self.e.function("train", ARGUMENTS):
            self.load_arguments()
            with self.e.loop(self.e.i64(0), self.updates) as update:
                self._update(update)
                self.e.set_result(self.e.b.add(update, self.e.i64(1)))
        return self._build_refresh()

    def build_module(self) -> object:
        zero = self.e.i64(0)
        with self.e.function("forward", ARGUMENTS):
            self.load_arguments()
            with self.e.loop(zero, self.batch) as item:
                self.copy_inputs(zero, item)
                self.forward(zero, item)
                self.readout(item)
        with self.e.function("backward", ARGUMENTS):
            self.load_arguments()
            with self.e.loop(zero, self.batch) as item:
                self.backward(item)
            self.compute_gradients()
            self.constrain_gradients()
        return self._build_refresh()

    def _build_refresh(self) -> object:
        with self.e.function("refresh", ARGUMENTS):
            self.load_arguments()
            self.refresh()
        return self.e.module

    def _update(self, update: Value) -> None:
        """One mini-batch: all items forward and backward, weight gradients, clipping, optimiser step.

        The function returns before the step if the loss is not finite.
        """
        e = self.e
        scale = e.load(self.loss_scales, update)
        loss = e.variable(F32, e.f32(0))
        with e.loop(e.i64(0), self.batch) as item:
            self.copy_inputs(update, item)
            self.forward(update, item)
            self.readout(item)
            e.write(loss, e.b.fadd(e.read(loss, F32), self.output_gradients(update, item, scale)))
            self.backward(item)
        value = e.b.fmul(e.read(loss, F32), scale)
        e.store(value, self.losses, update)
        e.return_if(e.b.not_(e.b.fcmp_ordered("<", value, e.f32(3e38))))
        self.compute_gradients()
        self.step(self.constrain_gradients())
        self.refresh()
