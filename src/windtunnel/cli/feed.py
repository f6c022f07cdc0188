"""windtunnel feed"""

from __future__ import annotations

from windtunnel.cli import words
from windtunnel.machine.machine import Machine

HELP = """
Show how well a job's devices are fed, and what each remedy buys: prefetch, loaders, a PCIe switch, more
storage, GPUDirect Storage, resident data, a transfer unit. By forecast; the machine need not be available.

`windtunnel feed guide` shows the worked example of the guide (Wuensche 2018, section IV.B).

[bold]Examples[/bold]

  windtunnel feed guide

  windtunnel feed resnet50 --on h200 --batch 64 --loaders 8 --storage samsung-960-pro

  windtunnel feed alexnet --on 4xgtx1080 --data streamed

  windtunnel feed my_job.py:build --on 8xh100 --example-bytes 110KB --decode 5ms --examples 1281167
"""
# For machines that state no storage.
_ASSUMED_STORAGE = "samsung-960-pro"


def feed(
    job: words.Job,
    on: words.On = "here",
    batch: words.Batch = None,
    precision: words.Precision = "pytorch",
    threads: words.Threads = None,
    execution: words.Execution = "eager",
    data: words.Data = "storage",
    prefetch: words.Prefetch = 0,
    loaders: words.Loaders = 0,
    load_ahead: words.LoadAhead = 2,
    pinned: words.Pinned = None,
    storage: words.StorageName = None,
    example_bytes: words.ExampleBytes = None,
    decode: words.Decode = None,
    examples: words.Examples = None,
    as_json: words.Json = False,
) -> None:
    if job == ["guide"]:
        from windtunnel.feed.worked_example import worked_example

        example = worked_example()
        words.show(as_json, example.plain, lambda: str(example))
        return
    from windtunnel.feed.remedies import compare_remedies

    strategy = words.make_strategy(
        batch=batch,
        precision=precision,
        threads=threads,
        execution=execution,
        data=data,
        prefetch=prefetch,
        loaders=loaders,
        load_ahead=load_ahead,
        pinned=pinned,
    )
    workload = words.with_stored_data(words.find_job(job), example_bytes, decode, examples)
    machine = Machine.find(on)
    known = machine.storage is not None and machine.storage.read_rate is not None
    machine = words.with_storage(machine, storage or (None if known else _ASSUMED_STORAGE))
    table = compare_remedies(workload, machine, strategy)
    if not known and storage is None and data == "storage":
        table = table.with_caution(
            f"{machine.name} states no storage: a {_ASSUMED_STORAGE} is assumed; name another with --storage"
        )
    words.show(as_json, table.plain, lambda: str(table))
