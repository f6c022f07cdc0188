"""What one forward op costs a CPU's host without gradients, by family, beside the same op with them.

python benchmarks/inference_launch_costs.py

Ops are so small that their arithmetic does not count. The smallest of many short bursts stands for each, in
processor time, both sides in turn. `forecast/inference_costs.py` holds the figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

ROUNDS, CALLS = 60, 200
# Examples, channels, side of the image, side of the kernel. Which library runs a convolution depends on them,
# and so does what a call costs.
CONVOLUTIONS = (
    *((1, 4, 6, 3), (2, 8, 8, 3), (2, 8, 4, 3), (2, 16, 8, 3)),
    *((2, 16, 8, 1), (1, 32, 4, 3), (1, 64, 2, 3), (1, 64, 2, 1)),
)


class _Empty(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def convolution(examples: int, channels: int, side: int, kernel: int) -> Callable[[], object]:
    image = torch.randn(examples, channels, side, side, requires_grad=True)
    weight = torch.randn(channels, channels, kernel, kernel, requires_grad=True)
    return lambda: F.conv2d(image, weight, padding=kernel // 2)


def calls() -> dict[str, Callable[[], object]]:
    row = torch.randn(1, 16, requires_grad=True)
    heads = torch.randn(1, 2, 4, 8, requires_grad=True)
    image = torch.randn(1, 4, 6, 6, requires_grad=True)
    square, table = torch.randn(16, 16, requires_grad=True), torch.randn(8, 16, requires_grad=True)
    scale, mean = torch.randn(4, requires_grad=True), torch.zeros(4)
    spread, words = torch.ones(4), torch.tensor([1, 2, 3])
    linear, empty, lstm = nn.Linear(16, 16), _Empty(), nn.LSTM(16, 16)
    steps = torch.randn(2, 1, 16)
    return {
        "attention": lambda: F.scaled_dot_product_attention(heads, heads, heads),
        **{f"convolution {sizes}": convolution(*sizes) for sizes in CONVOLUTIONS},
        "indexing": lambda: F.embedding(words, table),
        "matmul": lambda: torch.mm(row, square),
        "normalisation": lambda: F.batch_norm(image, mean, spread, scale, scale),
        "normalisation (layer)": lambda: F.layer_norm(row, (16,)),
        "pooling": lambda: F.max_pool2d(image, 2),
        "recurrent": lambda: lstm(steps),
        "reduction": lambda: row.mean(),
        "softmax": lambda: torch.softmax(row, -1),
        "streaming": lambda: torch.relu(row),
        "streaming (two inputs)": lambda: row + row,
        "other": lambda: torch.cat((row, row)),
        "view": lambda: row.view(16),
        "view (transposed)": lambda: row.t(),
        "module, empty": lambda: empty(row),
        "module, linear": lambda: linear(row),
        "linear without its module": lambda: F.linear(row, linear.weight, linear.bias),
    }


def burst(call: Callable[[], object]) -> float:
    begin = time.thread_time()
    for _ in range(CALLS):
        call()
    return (time.thread_time() - begin) / CALLS


def main() -> None:
    torch.set_num_threads(1)
    found: dict[str, tuple[float, float]] = {}
    every = calls()
    for _ in range(ROUNDS):
        for name, call in every.items():
            recorded = burst(call)
            with torch.no_grad():
                plain = burst(call)
            before = found.get(name, (1.0, 1.0))
            found[name] = min(before[0], recorded), min(before[1], plain)
    for name, (recorded, plain) in found.items():
        print(f"{name:28}{plain * 1e6:7.2f} us without gradients {recorded * 1e6:7.2f} us with them")


if __name__ == "__main__":
    main()
