"""Fake tensors as PyTorch's compiler needs them: plain ones, whose values it never sees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from windtunnel.trace.notes import Notes
from windtunnel.trace.places import caller, user_line
from windtunnel.trace.rehearsal import RehearsalValues


class PlainFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Fake tensors of which no value is known, with the interface of ValueTrackingMode. A number that the
    step asks for is that of a real step, if there was one."""

    is_building = False

    def __init__(self, notes: Notes | None = None, rehearsal_values: RehearsalValues | None = None) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._notes, self._lessons = notes or Notes(), rehearsal_values

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and self._lessons is not None:
            number = self._lessons.next_number(caller())
            if number is not None:
                self._notes.decide(user_line())
                return number
        return super().dispatch(func, types, args, kwargs)

    def adopt(self, tensor: Tensor, *, is_value: bool) -> Tensor:
        return self.from_tensor(tensor)

    def place_on_device(self, tensor: Tensor) -> None:
        """All fake tensors are alike."""

    def forget(self, tensor: Tensor) -> None:
        """No value is known."""
