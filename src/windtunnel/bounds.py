"""The largest accepted sizes, in one place: a larger step cannot be traced in a useful time.

They are far above what people train: the deepest published networks have about 1,200 layers, the largest
some 10**12 parameters.
"""

from __future__ import annotations

import dataclasses

from windtunnel.errors import BadRecord

MOST_SIZE = 10**9  # of any width, length or count
MOST_LIST = 1000  # sizes in a list, such as the widths of layers
MOST_THREADS = 4096
MOST_EPOCHS = 10**6
MOST_SEED = 2**63 - 1  # PyTorch's generators take no more
MOST_PARAMETERS = 10**13
MOST_EXAMPLES = 10**18  # of a data set: more than any that exists
MOST_OPS = 10**6  # of a step: recording more takes minutes
MOST_NAME = 200  # characters
# Settings that repeat a part of the step, each time with new ops.
MOST_REPEATED = {
    "n_steps": 20_000,
    "layers": 2_000,
    "num_hidden_layers": 2_000,
    "depth": 100,
    "k": 1_000,
    "leaves": 10_000,
    "operators": 10_000,
    "experts": 4_096,
    "heads": 65_536,
    "epochs": MOST_EPOCHS,
    "tune_epochs": MOST_EPOCHS,
}


def check_settings(settings: object, where: str) -> None:
    """Refuse a setting of a built-in network that is beyond its bound. `where` names the job."""
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        check_setting(field.name, getattr(settings, field.name), where)


def check_setting(name: str, value: object, where: str) -> None:
    if isinstance(value, (list, tuple)):
        if len(value) > MOST_LIST:
            raise BadRecord(f"{where}: {name} must have at most {MOST_LIST:,} entries, not {len(value):,}.")
        for item in value:
            check_setting(f"an entry of {name}", item, where)
    most = MOST_REPEATED.get(name, MOST_SIZE)
    if isinstance(value, int) and value > most:
        raise BadRecord(
            f"{where}: {name} must be at most {most:,}, not {brief(value)}.",
            hint="A step beyond this bound cannot be traced in useful time.",
        )


def brief(number: int) -> str:
    """A number as text; Python cannot format a number of more than 4,300 digits."""
    return f"{number:,}" if abs(number) < 10**30 else "a number of more than 30 digits"
