"""Mini-batches of one epoch after another, which can be continued from where they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from windtunnel.job.lesson import Stage
from windtunnel.records import Plain


class BatchStream:
    """The batches of a stage, in the order in which one worker would train on them."""

    def __init__(self, stage: Stage, order: torch.Generator) -> None:
        self.stage, self.order = stage, order
        self.taken = 0  # of the epoch that `began` is the state of
        self.began = order.get_state()
        self._batches: Iterator[Any] = iter(())
        self._is_open = False

    def take(self) -> Any:
        """The next mini-batch."""
        while True:
            if not self._is_open:
                self.began, self.taken = self.order.get_state(), 0
                self._batches, self._is_open = self.stage.batches(self.order), True
            for batch in self._batches:
                self.taken += 1
                return batch
            self._is_open = False

    def state(self) -> Plain:
        return {"began": self.began, "taken": self.taken}

    def load_state(self, state: Plain) -> None:
        self.order.set_state(state["began"])
        self._is_open = False
        for _ in range(state["taken"]):
            self.take()
