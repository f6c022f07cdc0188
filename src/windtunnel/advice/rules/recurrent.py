"""A small recurrent network in one call: PyTorch's own module, or the fused engine."""

from __future__ import annotations

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange

_JOB = "rnn"
_SOURCE = (
    "benchmarks/recurrent.py: the fused engine is 2.6 to 6.4 times as fast as numba by hand on one core, 3.9 "
    "to 26 times as fast as the best other variant on an H200 (docs/findings.md)"
)
_MODULE_SOURCE = (
    "study brandfonbrener-2017: at 50 units and 100 timesteps on an H200, 32 ms in a loop, 2.3 ms in nn.RNN "
    "(docs/findings.md)"
)


def propose(situation: Situation) -> Answer:
    origin = situation.workload.origin
    if origin is None or origin.job != _JOB:
        has_calls = any(op.family == "recurrent" for op in situation.trace.ops)
        more = ": a simple nn.RNN can become wt.FusedRNN by hand" if has_calls else ""
        return f"the fused engine runs the network rnn; this is {situation.workload.name}{more}"
    now = str(origin.settings.get("variant", "loop"))
    if now == "fused":
        return "the network runs in the fused engine already"
    launch = situation.spent("launch")
    size = f"{origin.settings.get('n_rec', 50)} units, {origin.settings.get('n_steps', 20)} timesteps"
    ops = f"{len(situation.trace.ops):,} ops for {size}"
    fused = Proposal(
        name="fused recurrent engine",
        change=StepChange(settings={"variant": "fused"}),
        flag="variant=fused",
        code="model = windtunnel.FusedRNN(n_in, n_rec, n_out)",
        reason=f"{launch}, in {ops}; the engine runs all timesteps in one call",
        costs="relu or sigmoid networks only; the first call generates code, "
        f"{'a second or less on a CPU' if not situation.on_gpu else 'some seconds on a GPU'}",
        source=_SOURCE,
    )
    sigmoid = origin.settings.get("activation") == "sigmoid"
    if now == "module" or sigmoid:
        return (fused,)
    return fused, Proposal(
        name="PyTorch's recurrent module",
        change=StepChange(settings={"variant": "module"}),
        flag="variant=module",
        code="states, _ = torch.nn.RNN(n_in, n_rec, nonlinearity='relu')(inputs)",
        reason=f"{launch}, in {ops}; nn.RNN launches all timesteps of a layer in "
        f"{'one cuDNN call' if situation.on_gpu else 'C++'}",
        costs="only the activations of nn.RNN (relu, tanh)",
        source=_MODULE_SOURCE,
    )


RULE = AdviceRule(
    name="recurrent", about="nn.RNN or the fused engine instead of a Python loop over time", propose=propose
)
