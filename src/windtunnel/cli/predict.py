"""windtunnel predict"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from windtunnel.cli import words
from windtunnel.errors import BadInput
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy

HELP = """
Predict the time, memory and bottleneck of a step, training or inference. The machine need not be available.

[bold]Examples[/bold]

  windtunnel predict rnn n_rec=50 n_steps=100 --on h200

  windtunnel predict fcn5 --on i7-3820 --threads 4

  windtunnel predict torchvision:resnet50 --on a100-80gb --batch 64 --precision bf16 --layout channels_last

  windtunnel predict resnet50 --on raspberry-pi-5 --inference --batches 1,8,64

  windtunnel predict resnet50 --on h200 --batch 64 --data storage --storage samsung-960-pro --loaders 8

  windtunnel predict gpt2 --on h200 --strategy plan.toml

  windtunnel predict my_job.py:build width=512 --on 8xh100 --batch 64 --precision bf16 --json

  windtunnel predict llm:llama layers=32 width=4096 heads=32 inner=11008 --on 8xh100 --shard weights

  windtunnel predict llm:gpt layers=96 width=12288 heads=96 --on 128x8xa100-80gb --tensor-parallel 8
  --pipeline-parallel 16 --batch 1536 --micro-batches 192 --recompute blocks
"""


def predict(
    context: typer.Context,
    job: words.OptionalJob = None,
    on: words.On = "here",
    strategy_file: words.StrategyFile = None,
    batch: words.Batch = None,
    precision: words.Precision = "pytorch",
    threads: words.Threads = None,
    execution: words.Execution = "eager",
    data: words.Data = "resident",
    prefetch: words.Prefetch = 0,
    loaders: words.Loaders = 0,
    load_ahead: words.LoadAhead = 2,
    pinned: words.Pinned = None,
    direct: words.Direct = False,
    storage: words.StorageName = None,
    example_bytes: words.ExampleBytes = None,
    decode: words.Decode = None,
    examples: words.Examples = None,
    accumulate: words.Accumulate = 1,
    recompute: words.Recompute = "none",
    optimizer: words.Optimizer = None,
    layout: words.Layout = None,
    cudnn_benchmark: words.CudnnBenchmark = False,
    expandable_segments: words.ExpandableSegments = False,
    inference: words.Inference = False,
    data_parallel: words.DataParallel = None,
    tensor_parallel: words.TensorParallel = 1,
    pipeline_parallel: words.PipelineParallel = 1,
    pipeline_schedule: words.PipelineSchedule = "1f1b",
    virtual_stages: words.VirtualStages = 1,
    shard: words.Shard = "none",
    sequence_parallel: words.SequenceParallel = False,
    expert_parallel: words.ExpertParallel = 1,
    exchange: words.Exchange = "buckets",
    batches: Annotated[
        str | None,
        typer.Option(
            "--batches",
            help="A table over several batches, such as 1,8,64: latency and throughput with --inference.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help="The host of a GPU: a CPU machine of the catalogue. Default: one reference host.",
            show_default=False,
        ),
    ] = None,
    host_factor: Annotated[
        float | None,
        typer.Option(
            "--host-factor",
            help="Measured slowdown of the host; `windtunnel machine probe --host` prints it.",
            show_default=False,
        ),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline",
            help="Write the timeline of the step to this file; ui.perfetto.dev opens it.",
            show_default=False,
        ),
    ] = None,
    as_json: words.Json = False,
) -> None:
    from windtunnel import perfetto
    from windtunnel.prediction import predict_with_timeline

    plan = words.read_plan(strategy_file, context)
    strategy = words.make_strategy(
        plan,
        batch=batch,
        precision=precision,
        threads=threads,
        execution=execution,
        data=data,
        prefetch=prefetch,
        loaders=loaders,
        load_ahead=load_ahead,
        pinned=pinned,
        direct=direct,
        accumulate=accumulate,
        recompute=recompute,
        optimizer=optimizer,
        layout=layout,
        cudnn_benchmark=cudnn_benchmark,
        expandable_segments=expandable_segments,
        inference=inference,
        data_parallel=data_parallel,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        pipeline_schedule=pipeline_schedule,
        virtual_stages=virtual_stages,
        shard=shard,
        sequence_parallel=sequence_parallel,
        expert_parallel=expert_parallel,
        exchange=exchange,
    )
    if timeline:
        words.refuse_unwritable(timeline, "--timeline")
    if batches is not None and (timeline or batch is not None):
        other = "--timeline" if timeline else "--batch"
        raise BadInput(f"--batches cannot go with {other}.", hint=f"Leave {other} out.")
    found = words.find_job(words.job_of(plan, job))
    further = words.further_options(plan, context.params)
    workload = words.with_stored_data(found, further["example_bytes"], further["decode"], further["examples"])
    on = words.machine_of(plan, on)
    machine = find_machine(on, further["storage"], further["host"], further["host_factor"])
    if batches is not None:
        _show_batches(workload, machine, strategy, batches, as_json)
        return
    forecast, schedule = predict_with_timeline(workload, machine, strategy)
    words.show(as_json, forecast.plain, lambda: str(forecast))
    if timeline:
        perfetto.write(timeline, perfetto.from_timeline(schedule))


def find_machine(on: str, storage: str | None, host: str | None, host_factor: float | None) -> Machine:
    """The machine of --on with the storage and the host that other options name."""
    machine = words.with_storage(Machine.find(on), storage)
    machine = machine if host is None else machine.with_host(Machine.find(host))
    return machine if host_factor is None else machine.with_host_factor(host_factor)


def _show_batches(
    workload: Workload, machine: Machine, strategy: Strategy, batches: str, as_json: bool
) -> None:
    from windtunnel.influence.batches import parse_batches, predict_batches

    table = predict_batches(workload, machine, strategy, parse_batches(batches))
    words.show(as_json, table.plain, lambda: str(table))
