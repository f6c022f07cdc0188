"""Time gloo's collectives between processes of this host by the clock; forecast/gloo.py names the result.

    python benchmarks/gloo.py [--ranks 2] [--seconds 30] [--to FILE.csv]

Each rank is a process with one thread. Several sizes and kinds take turns until the time is up. The row of
each is the lowest decile of its times, which other programs on the machine disturb least.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

KINDS = ("all_reduce", "all_gather", "broadcast", "send")
SIZES = (2**10, 2**14, 2**18, 2**20, 2**22, 2**24, 2**26)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--to", type=Path)
    wish = parser.parse_args()
    processes = [
        multiprocessing.Process(target=run, args=(rank, wish.ranks, wish.seconds, wish.to))
        for rank in range(wish.ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(wish.seconds + 60)


def run(rank: int, ranks: int, seconds: float, to: Path | None) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29600 + ranks))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    times = defaultdict(list)
    until, more = time.monotonic() + seconds, torch.ones(1)
    while more.item():
        for kind in KINDS:
            for size in SIZES:
                call = prepare(kind, size, rank, ranks)
                for _ in range(5 if size < 2**22 else 2):
                    dist.barrier()
                    start = time.perf_counter()
                    call()
                    times[kind, size].append(time.perf_counter() - start)
        more.fill_(float(time.monotonic() < until))
        dist.broadcast(more, 0)  # all ranks stop together
    if rank == 0:
        lines = ["kind,ranks,bytes,seconds,calls"]
        for (kind, size), some in times.items():
            lines.append(f"{kind},{ranks},{size},{sorted(some)[len(some) // 10]:.3e},{len(some)}")
        text = "\n".join(lines) + "\n"
        if to is not None:
            to.write_text(text)
        sys.stdout.write(text)
        sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # gloo's groups sometimes abort while they are torn down


def prepare(kind: str, size: int, rank: int, ranks: int) -> Callable[[], object]:
    import torch
    import torch.distributed as dist

    whole, part = torch.zeros(size // 4), torch.zeros(max(1, size // 4 // ranks))
    parts = [torch.zeros_like(part) for _ in range(ranks)]
    if kind == "all_reduce":
        return lambda: dist.all_reduce(whole)
    if kind == "all_gather":
        return lambda: dist.all_gather(parts, part)
    if kind == "broadcast":
        return lambda: (dist.broadcast(whole, 0), dist.barrier())

    def send() -> None:
        """There, and one number back."""
        if rank == 0:
            dist.send(whole, 1)
            dist.recv(part[:1], 1)
        elif rank == 1:
            dist.recv(whole, 0)
            dist.send(part[:1].clone(), 0)

    return send


if __name__ == "__main__":
    main()
