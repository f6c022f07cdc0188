"""Fine-tuning of BERT on questions and answers, as NVIDIA's example runs it.

Source: github NVIDIA/DeepLearningExamples f8b3a63, PyTorch/LanguageModeling/BERT: run_squad.py and
optimization.py. The host reads the loss, the norm of the gradients and whether they overflowed in each step.
In fp16 the weights have a copy in fp32 and one fused update (apex); in fp32 the update is BertAdam, some 15
kernels for each tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import windtunnel as wt
from windtunnel.job import imports
from windtunnel.job.language import LanguageSettings, MixedAdamW

BERT = {"bert-base": (12, 768, 12), "bert-large": (24, 1024, 16)}  # layers, width, heads
_TOKENS = 384
_MOST_NORM = 1.0
_RATE, _DECAY, _SMALL = 3e-5, 0.01, 1e-6
_FIRST, _SECOND = 0.9, 0.999


class BertAdam(torch.optim.Optimizer):
    """Adam without bias correction, one tensor and one operation at a time."""

    def __init__(self, params: Any) -> None:
        super().__init__(list(params), {"lr": _RATE})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[parameter]
            if not state:
                state["mean"], state["square"] = (torch.zeros_like(parameter) for _ in range(2))
            mean, square, gradient = state["mean"], state["square"], parameter.grad
            mean.mul_(_FIRST).add_(gradient, alpha=1 - _FIRST)
            square.mul_(_SECOND).addcmul_(gradient, gradient, value=1 - _SECOND)
            update = mean / (square.sqrt() + _SMALL)
            if parameter.dim() > 1:  # biases and scales do not decay
                update += _DECAY * parameter
            parameter.add_(-(_RATE * update))


def job(name: str, *, half: bool) -> Callable[[], wt.Workload]:
    """`half`: weights in fp16 with a copy in fp32."""
    layers, width, heads = BERT[name]

    def build() -> wt.Workload:
        imports.install()  # transformers imports torchvision
        import transformers

        config = transformers.BertConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            intermediate_size=4 * width,
        )
        config._attn_implementation = "eager"

        def model() -> torch.nn.Module:
            network: torch.nn.Module = transformers.BertForQuestionAnswering(config)  # type: ignore[no-untyped-call]
            network.train()
            return network.half() if half else network

        def batch(n: int) -> Any:
            tokens = torch.randint(0, config.vocab_size, (n, _TOKENS))
            mask = torch.ones(n, _TOKENS, dtype=torch.long)
            kinds = torch.zeros(n, _TOKENS, dtype=torch.long)
            return tokens, kinds, mask, torch.randint(0, _TOKENS, (n,)), torch.randint(0, _TOKENS, (n,))

        return wt.Workload(name=name, model=model, batch=batch, step=_step, optimizer=_optimizer(half))

    return build


def _step(network: Any, examples: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = _loss(network, examples)
    loss.backward()  # type: ignore[no-untyped-call]
    if isinstance(optimizer, BertAdam):
        torch.nn.utils.clip_grad_norm_(network.parameters(), _MOST_NORM).item()
    else:
        loss.item()  # whether gradients overflowed; the optimizer clips by itself
    optimizer.step()
    loss.item()
    return loss


def _loss(network: Any, examples: Any) -> torch.Tensor:
    tokens, kinds, mask, starts, ends = examples
    found = network(input_ids=tokens, token_type_ids=kinds, attention_mask=mask)
    entropy = torch.nn.functional.cross_entropy
    first, last = entropy(found.start_logits.float(), starts), entropy(found.end_logits.float(), ends)
    return (first + last) / 2


def _optimizer(half: bool) -> Callable[[Any], Any]:
    if half:
        settings = LanguageSettings(weights="fp16", gradients="fp16")
        return lambda params: MixedAdamW(params, settings)
    return BertAdam
