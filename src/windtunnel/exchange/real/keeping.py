"""What a worker process writes into a checkpoint, and reads again to go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from windtunnel.exchange.real import checkpoints
from windtunnel.exchange.real.endings import NotFinite
from windtunnel.learning import checkpoint, randomness
from windtunnel.records import Plain

if TYPE_CHECKING:
    from windtunnel.exchange.real.worker import Worker

_ROUND_STEPS = 100  # the most steps of a worker between two checkpoints: a choice, as under a simulated clock


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    """Something that a process must know again: how it is read and how it is set."""

    get: Callable[[], Any]
    put: Callable[[Any], None]


Parts = Mapping[str, KeptState]


def setter(tensors: list[Tensor]) -> Callable[[list[Tensor]], None]:
    """Sets tensors in place."""

    @torch.no_grad()
    def put(values: list[Tensor]) -> None:
        for own, value in zip(tensors, values, strict=True):
            own.copy_(value)

    return put


def weights_and_optimizer(
    worker: Worker, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, KeptState]:
    """The weights of the network, and what its optimizer remembers."""
    chosen = optimizer or worker.splitter.optimizer
    return {
        "weights": KeptState(get=worker.splitter.weights, put=worker.splitter.load),
        "optimizer": KeptState(get=chosen.state_dict, put=chosen.load_state_dict),
    }


def divided_parts(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, KeptState]:
    """The same of divided weights: all workers gather them together, and each takes its share again."""
    from torch.distributed.checkpoint import state_dict as states

    whole = states.StateDictOptions(full_state_dict=True, cpu_offload=True)

    def put_weights(found: Any) -> None:
        states.set_model_state_dict(model, found, options=whole)

    def put_optimizer(found: Any) -> None:
        states.set_optimizer_state_dict(model, optimizer, found, options=whole)

    return {
        "weights": KeptState(get=lambda: states.get_model_state_dict(model, options=whole), put=put_weights),
        "optimizer": KeptState(
            get=lambda: states.get_optimizer_state_dict(model, optimizer, options=whole), put=put_optimizer
        ),
    }


class Keeper:
    """The checkpoints of one process.

    shared  what the holder of the weights writes, for all processes
    own     what each process writes for itself, besides its random numbers, buffers and place in the data
    """

    def __init__(self, worker: Worker, shared: Parts, own: Parts | None = None) -> None:
        self.worker, self.spec, self.shared = worker, worker.spec, shared
        stream = worker.stream
        self.own = {
            "random": KeptState(get=randomness.state, put=randomness.load_state),
            "buffers": KeptState(
                get=lambda: [buffer.clone() for buffer in worker.buffers()], put=setter(worker.buffers())
            ),
            "stream": KeptState(get=stream.state, put=stream.load_state),
            **(own or {}),
        }
        if worker.device:
            self.own["device"] = KeptState(get=torch.cuda.get_rng_state, put=torch.cuda.set_rng_state)
        self.last = self.spec.start
        self.is_holder = worker.rank == self.spec.holder
        self.snapshots = 0  # of the learning curve that are kept

    def resume(self) -> None:
        """Goes on after `spec.start` changes. Asynchronous workers take further batches in an order of their
        own; all others take exactly those that an uninterrupted training takes."""
        spec, folder = self.spec, self.worker.folder
        if not spec.start:
            return
        trees, note = checkpoint.load(checkpoints.part_path(folder, spec.start, spec.holder))
        self._put(self.shared, trees)
        if self.worker.rank in spec.keepers:
            own, _ = checkpoint.load(checkpoints.part_path(folder, spec.start, self.worker.rank))
            self._put(self.own, own)
        else:
            self.own["buffers"].put(trees["buffers"])
            randomness.seed_all(spec.seed + spec.start)
        self.worker.log.go_on(note["seconds"])
        if self.is_holder or spec.shard:
            self._load_snapshots()

    def save(self, changes: int, *, at_end: bool = False) -> None:
        """Writes a checkpoint after this change, if one is due."""
        if not self.spec.keep or changes <= self.last or not (at_end or self._is_due(changes)):
            return
        shared = {}
        if self.is_holder or self.spec.shard:  # divided weights are gathered by all workers
            shared = {name: part.get() for name, part in self.shared.items()}
        self.last = changes
        if self.worker.rank not in self.spec.keepers:
            return
        if not _all_finite(shared if self.is_holder else {}):
            raise NotFinite(f"after {changes} changes the weights are no longer finite numbers")
        self._save_snapshots()
        own = {name: part.get() for name, part in self.own.items()}
        note = {
            "identity": self.spec.identity(),
            "changes": changes,
            "seconds": self.worker.log.now(),
            "where": self._where(changes),
        }
        folder, rank = self.worker.folder, self.worker.rank
        trees = {**own, **(shared if self.is_holder else {})}
        checkpoint.save(checkpoints.part_path(folder, changes, rank), trees, note)
        checkpoints.prune(folder, rank, changes)

    def _is_due(self, changes: int) -> bool:
        """After each pass over the data, after a hundred steps of a long one, and at the end."""
        group = self.spec.per_change
        size = min(self.worker.stage.steps, _ROUND_STEPS * self.spec.workers)
        return changes * group // size > (changes - 1) * group // size or changes == self.worker.changes

    def _where(self, changes: int) -> str:
        passes = changes * self.spec.per_change / self.worker.stage.steps
        whole = f"{self.worker.changes:,} changes of the weights"
        return f"{changes:,} of {whole} ({passes:.3g} pass{'' if passes == 1 else 'es'} over the data)"

    def _put(self, parts: Parts, trees: Plain) -> None:
        for name, part in parts.items():
            part.put(trees[name])

    def _save_snapshots(self) -> None:
        if not self.is_holder:
            return
        for seconds, changes, tensors in self.worker.snapshots[self.snapshots :]:
            path = checkpoints.snapshot_path(self.worker.folder, changes)
            checkpoint.save(path, {"tensors": tensors}, {"seconds": seconds, "changes": changes})
        self.snapshots = len(self.worker.snapshots)

    def _load_snapshots(self) -> None:
        paths = checkpoints.snapshots_in(self.worker.folder, self.spec.start)
        for path in paths if self.is_holder else paths[-1:]:
            trees, note = checkpoint.load(path)
            self.worker.snapshots.append((note["seconds"], note["changes"], trees["tensors"]))
        self.snapshots = len(self.worker.snapshots)


def _all_finite(shared: Plain) -> bool:
    weights = shared.get("weights", [])
    tensors = weights.values() if isinstance(weights, Mapping) else weights
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
