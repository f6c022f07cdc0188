"""Your own model: five functions make a job. The command line takes the same file:

windtunnel predict examples/own_model.py:build width=64 --on t4
"""

import torch
from torch import nn

import windtunnel as wt


def build(width: int = 32) -> wt.Workload:
    """Settings become parameters of this function, with their types and defaults."""

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(4),
            nn.Flatten(),
            nn.Linear(width * 8 * 8, 10),
        )

    return wt.Workload(
        name="own model",
        model=model,
        batch=lambda n: (torch.randn(n, 3, 32, 32), torch.randint(0, 10, (n,))),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters),
        examples=50_000,
    )


if __name__ == "__main__":
    for width in (32, 64, 128):
        forecast = wt.predict(build(width), wt.Machine.named("t4"), wt.Strategy(batch=256))
        seconds = wt.units.show(forecast.step_seconds, "s")
        epoch = wt.units.show(forecast.epoch_seconds or 0.0, "s")
        print(
            f"width {width:>3}: {forecast.parameters:>7,} parameters, {seconds:>8} a step, "
            f"{epoch:>7} an epoch, bound by {forecast.bound_by}"
        )
