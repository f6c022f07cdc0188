"""windtunnel network list | show"""

from __future__ import annotations

import dataclasses
from typing import Any

import typer

from windtunnel import networks, records, units
from windtunnel.cli import words

app = typer.Typer(help="The networks that can be named as jobs.", no_args_is_help=True, rich_markup_mode="rich")


@app.command("list", help="All named networks.\n\nExample: windtunnel network list")
def list_networks(as_json: words.Json = False) -> None:
    found = [networks.named(name) for name in networks.names()]
    words.show(as_json, lambda: [records.plain(n) for n in found], lambda: "\n".join(f"{n.name:<14}{n.title}" for n in found))


@app.command("show", help="What a network is for, its settings, parameters, flop and memory a step.\n\nExample: windtunnel network show rnn n_rec=200")
def show_network(job: words.Job, as_json: words.Json = False) -> None:
    from windtunnel.forecast.memory import account
    from windtunnel.machine import Machine
    from windtunnel.prediction import trace
    from windtunnel.strategy import Strategy

    network = networks.named(job[0])
    workload = words.find_job(job)
    recorded = trace(workload, Strategy(), "cpu")
    memory = account(recorded, Machine.named("i7-3820"))
    facts: dict[str, Any] = {
        **records.plain(network),
        "settings": _settings(network, dict(workload.origin.settings) if workload.origin else {}),
        "batch": recorded.batch,
        "parameters": recorded.parameters,
        "flop": recorded.flop,
        "peak_bytes": memory.peak_bytes,
    }
    words.show(as_json, lambda: facts, lambda: _text(facts))


def _settings(network: networks.Network, given: dict[str, Any]) -> dict[str, Any]:
    chosen = records.read(network.settings, given, f"job {network.name}")
    return {f.name: records.plain(getattr(chosen, f.name)) for f in dataclasses.fields(chosen)}


def _text(facts: dict[str, Any]) -> str:
    settings = " ".join(f"{key}={_word(value)}" for key, value in facts["settings"].items())
    return "\n".join(
        [
            f"{facts['name']}: {facts['title']}",
            f"  for       {facts['purpose']}",
            f"  source    {facts['source']}",
            f"  settings  {settings}",
            f"  size      {facts['parameters']:,} parameters",
            f"  a step    {units.show(facts['flop'], 'flop')} and {units.show(facts['peak_bytes'], 'B')} at batch {facts['batch']} on a CPU",
        ]
    )


def _word(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
