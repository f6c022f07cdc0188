"""Why a step cannot be forecast, with the line of the user's code and what to do now."""

from __future__ import annotations

from windtunnel.errors import BadJob, text_of
from windtunnel.job.workload import Workload, place_of
from windtunnel.trace.inputs import first_line

# What PyTorch says if a job needs CUDA.
_WITHOUT_CUDA = (
    "with CUDA enabled",
    "CUDA support",
    "CUDA build",
    "dummy base class",
    "NVIDIA driver",
    "No CUDA GPUs",
    "accelerator device",
    "_cuda_",
)
# What PyTorch says where fake tensors end, what that means, and what to do.
_NOT_TRACED = {
    "shape_env must not be None": ("nested tensors", "Pad the sequences"),
    "in_kernel_invocation": ("several threads", "Run the network on one thread"),
    "dummy base class CUDAGraph": (
        "a CUDA graph of its own",
        "Leave its capture out and add --execution graph",
    ),
    "FSDP needs a non-CPU": (
        "FullyShardedDataParallel",
        "Leave it out and add --shard weights, or use fully_shard",
    ),
}


def cannot_be_divided(workload: Workload, workers: int, error: Exception) -> BadJob:
    return BadJob(
        f"{workload.name} cannot be divided between {workers} tensor-parallel workers: with one worker's "
        f"share of each layer, its step raised {type(error).__name__}: {first_line(error)}",
        hint=f"Use a degree that divides the width and the number of heads. {place_of(error, workload.loss)}",
    )


def refusal(workload: Workload, batch: int, target: str, error: Exception) -> BadJob:
    """What the user's code raised, in words that say what to do."""
    if target == "cpu" and any(words in text_of(error) for words in _WITHOUT_CUDA):
        return BadJob(
            f"{workload.name} asks for CUDA, which a CPU lacks.",
            hint=f"Predict it on a GPU machine, or use the device of the model. {place_of(error)}",
        )
    for words, (what, instead) in _NOT_TRACED.items():
        if words in text_of(error):
            return BadJob(
                f"{workload.name} uses {what}, which a forecast cannot follow.",
                hint=f"{instead}, or use measure. {place_of(error)}",
            )
    return BadJob(
        f"The step of {workload.name} at batch {batch} raised {type(error).__name__}: {first_line(error)}",
        hint=place_of(error, workload.loss or workload.step),
    )


def undecided(workload: Workload, line: str, reason: str) -> BadJob:
    return BadJob(
        f"A value decides what the step of {workload.name} does ({line}), and {reason}.",
        hint="Let the step not depend on this value, or use measure instead.",
    )
