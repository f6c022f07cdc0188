"""The fused engine's machine code, put together: whole epochs in one call, and forward and backward by themselves for autograd."""

from __future__ import annotations

import functools
import threading

from windtunnel.fused.emit import F32, Compiled, Value
from windtunnel.fused.layout import SLOTS, Spec
from windtunnel.fused.sweep import Sweep
from windtunnel.fused.update import Update

_ONE_AT_A_TIME = threading.Lock()  # LLVM's target machine is shared, and cannot serve two threads at once


def compiled(spec: Spec, part: str) -> Compiled:
    """Code for one network: `train` has the epochs, `module` has forward and backward; both have refresh."""
    with _ONE_AT_A_TIME:
        return _compiled(spec, part)


@functools.cache
def _compiled(spec: Spec, part: str) -> Compiled:
    writer = Writer(spec)
    return Compiled(writer.write_train() if part == "train" else writer.write_module())


class Writer(Sweep, Update):
    """Writes the functions that Python calls; each takes the table of slots."""

    def write_train(self) -> object:
        with self.e.function("train", SLOTS):
            self.bind()
            with self.e.loop(self.e.i(0), self.updates) as update:
                self._update(update)
                self.e.answer(self.e.b.add(update, self.e.i(1)))
        return self._write_refresh()

    def write_module(self) -> object:
        nothing = self.e.i(0)
        with self.e.function("forward", SLOTS):
            self.bind()
            with self.e.loop(nothing, self.batch) as b:
                self.take_inputs(nothing, b)
                self.forward(nothing, b)
                self.readout(b)
        with self.e.function("backward", SLOTS):
            self.bind()
            with self.e.loop(nothing, self.batch) as b:
                self.backward(b)
            self.gradients()
            self.constrain()
        return self._write_refresh()

    def _write_refresh(self) -> object:
        with self.e.function("refresh", SLOTS):
            self.bind()
            self.refresh()
        return self.e.module

    def _update(self, update: Value) -> None:
        """One mini-batch: every example forward and backward, all weight gradients as one product, clip, step."""
        e = self.e
        scale = e.load(self.scales, update)
        loss = e.local(F32, e.f(0))
        with e.loop(e.i(0), self.batch) as b:
            self.take_inputs(update, b)
            self.forward(update, b)
            self.readout(b)
            e.set(loss, e.b.fadd(e.get(loss, F32), self.slopes_of_loss(update, b, scale)))
            self.backward(b)
        value = e.b.fmul(e.get(loss, F32), scale)
        e.store(value, self.losses, update)
        e.leave_when(e.b.not_(e.b.fcmp_ordered("<", value, e.f(3e38))))
        self.gradients()
        self.step(self.constrain())
        self.refresh()
