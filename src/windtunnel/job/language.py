"""Language models as training frameworks run them: `llm:gpt`, `llm:llama`, `llm:mpt` with any sizes.

They differ from `gpt2` in what a framework adds: weights in 16 bits with a copy in 32 bits that the optimizer
updates, gradients added up in 32 bits, fused kernels. Nothing is computed with real values and no memory is
needed, so that a network of a trillion parameters can be forecast on a laptop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel import bounds, records
from windtunnel.errors import BadRecord, UnknownName, nearest
from windtunnel.job import kernels
from windtunnel.job.workload import Origin, Workload, forward_inputs

Format = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_RATE = 1e-4
_SPREAD = 0.02  # of initial weights, as GPT-2 has it


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageSettings:
    """The sizes of a decoder and how its framework runs it.

    heads, kv_heads   heads of the queries; of keys and values (default: as many)
    inner             width of the MLP; default: 4 x width
    gated             the MLP multiplies two layers (SwiGLU)
    positions         learned: a table of positions; rotary: queries and keys are rotated
    tied              the output layer shares the weights of the token embedding
    attention         flash: one kernel that stores no scores; first-flash: its first version of 2022, also
                      the one in Triton, about half as fast; plain: products and softmax
    dropout           as GPT has it; 0: none
    weights           number format of weights and activations; below fp32 the optimizer keeps a copy in fp32
    gradients         number format in which gradients of micro-batches are added up
    loss              fused: PyTorch's cross-entropy; steps: one pass after another over the scores, as
                      Megatron-LM and nanotron compute it so that workers can divide the tokens; kernel: one
                      kernel that reads the scores in 16 bits, as that of FlashAttention's package
    metrics           cross-entropies that only inform, computed again in fp32 after each backward pass
    experts, active   experts of each MLP (0: none), and how many of them a token uses
    """

    layers: int = 12
    width: int = 768
    heads: int = 12
    kv_heads: int | None = None
    inner: int | None = None
    gated: bool = False
    bias: bool = True
    positions: Literal["learned", "rotary"] = "learned"
    tied: bool = True
    attention: Literal["flash", "first-flash", "plain"] = "flash"
    dropout: float = 0.0
    vocabulary: int = 50304
    length: int = 2048
    weights: Format = "bf16"
    gradients: Format = "fp32"
    experts: int = 0
    active: int = 2
    loss: Literal["fused", "steps", "kernel"] = "fused"
    metrics: int = 0
    clip: bool = True

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "vocabulary", "length"):
            if getattr(self, name) < 1:
                raise BadRecord(f"llm: {name} must be above 0, not {getattr(self, name)}.")
        if self.width % self.heads or self.heads % self.key_heads:
            raise BadRecord(
                f"llm: heads must divide width, and kv_heads must divide heads; width is {self.width}, "
                f"heads {self.heads}, kv_heads {self.key_heads}."
            )
        if not 0 <= self.dropout < 1:
            raise BadRecord(f"llm: dropout must be from 0 to below 1, not {self.dropout}.")
        if self.attention == "first-flash" and (self.dropout or self.key_heads != self.heads):
            raise BadRecord("llm: attention first-flash takes neither dropout nor shared keys.")
        if self.metrics < 0:
            raise BadRecord(f"llm: metrics must be at least 0, not {self.metrics}.")
        if self.experts < 0 or (self.experts and not 1 <= self.active <= self.experts):
            raise BadRecord(f"llm: {self.active} active of {self.experts} experts are not possible.")

    @property
    def key_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def mlp_width(self) -> int:
        return self.inner or 4 * self.width


# What each kind has by default; settings change it.
KINDS: Mapping[str, Mapping[str, object]] = {
    # Megatron-LM of 2021 (github NVIDIA/Megatron-LM, megatron/model/transformer.py, v2.4).
    "gpt": {
        "attention": "plain",
        "dropout": 0.1,
        "vocabulary": 51200,
        "weights": "fp16",
        "loss": "steps",
    },
    # Touvron et al. 2023, as nanotron trains it.
    "llama": {
        "gated": True,
        "bias": False,
        "positions": "rotary",
        "tied": False,
        "vocabulary": 32000,
        "loss": "steps",
    },
    # github mosaicml/llm-foundry, MPT: no biases, learned positions, tied embeddings, the loss of
    # FlashAttention's package and two metrics of training (llmfoundry/models/mpt/modeling_mpt.py), which
    # Composer computes after each backward pass (composer/trainer/trainer.py, _eval_train_metrics).
    "mpt": {"bias": False, "vocabulary": 50368, "gradients": "bf16", "loss": "kernel", "metrics": 2},
}


def workload(kind: str, settings: Mapping[str, object]) -> Workload:
    """The job `llm:<kind>` with these settings."""
    if kind not in KINDS:
        raise UnknownName(f"llm: no language model is called {kind!r}.", hint=nearest(kind, KINDS))
    chosen = records.read(LanguageSettings, {**KINDS[kind], **settings}, f"job llm:{kind}")
    bounds.check_settings(chosen, f"job llm:{kind}")
    job = build(chosen)
    origin = Origin(job=f"llm:{kind}", settings=dict(settings))
    return dataclasses.replace(job, name=f"llm:{kind}", origin=origin)


def build(settings: LanguageSettings) -> Workload:
    """One step on random tokens; one sequence in a batch by default."""

    def batch(n: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(0, settings.vocabulary, (n, settings.length + 1))
        return tokens[:, :-1], tokens[:, 1:]

    return Workload(
        name="llm",
        model=lambda: _model(settings),
        batch=batch,
        loss=_LOSSES[settings.loss],
        forward=forward_inputs,
        optimizer=lambda params: MixedAdamW(params, settings),
    )


def _model(settings: LanguageSettings) -> nn.Module:
    before = torch.get_default_dtype()
    torch.set_default_dtype(_DTYPES[settings.weights])
    try:
        return LanguageModel(settings)
    finally:
        torch.set_default_dtype(before)


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1).float(), batch[1].flatten())


def _loss_in_steps(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    scores = model(batch[0]).flatten(0, 1).float()
    losses: Tensor = _CrossEntropy.apply(scores, batch[1].flatten())  # type: ignore[no-untyped-call]
    return losses.mean()


def _loss_of_one_kernel(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return kernels.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten()).mean()


_LOSSES = {"fused": _loss, "steps": _loss_in_steps, "kernel": _loss_of_one_kernel}


class _CrossEntropy(torch.autograd.Function):
    """Cross-entropy in the passes of Megatron-LM (megatron/mpu/cross_entropy.py, v2.4)."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, targets: Tensor) -> Tensor:
        scores = scores - scores.max(-1, keepdim=True)[0]
        chosen = scores.gather(-1, targets.clamp(max=scores.shape[-1] - 1).unsqueeze(-1)).squeeze(-1)
        shares = torch.exp(scores)
        total = shares.sum(-1, keepdim=True)
        shares.div_(total)
        ctx.save_for_backward(shares)
        return torch.log(total).squeeze(-1) - chosen

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (shares,) = ctx.saved_tensors
        return shares.mul_(gradients[0].unsqueeze(-1)), None


class LanguageModel(nn.Module):
    """Embeddings, blocks, a normalisation, and scores of all tokens."""

    has_parallel_loss = True  # tensor-parallel workers compute the loss from the scores of their own tokens

    def __init__(self, settings: LanguageSettings) -> None:
        super().__init__()
        width, self.settings = settings.width, settings
        self.tokens = nn.Embedding(settings.vocabulary, width)
        if settings.positions == "learned":
            self.positions = nn.Embedding(settings.length, width)
        self.dropout = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(DecoderBlock(settings) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(width, bias=settings.bias)
        self.head = _Layer(width, settings.vocabulary, bias=False)
        if settings.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        first = states = self.tokens(tokens)
        if self.settings.positions == "learned":
            states = states + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        if self.settings.dropout:
            states = self.dropout(states)
        for block in self.blocks:
            states = block(states)
        scores: Tensor = self.head(self.norm(states))
        if self.settings.metrics and first.requires_grad:
            kernels.when_backward_ends(first, lambda: self._measure(scores.detach(), tokens))
        return scores

    @torch.no_grad()
    def _measure(self, scores: Tensor, tokens: Tensor) -> None:
        for _ in range(self.settings.metrics):
            F.cross_entropy(scores.flatten(0, 1).float(), tokens.flatten(), reduction="sum")


class DecoderBlock(nn.Module):
    """Attention and an MLP; each adds to its input."""

    def __init__(self, settings: LanguageSettings) -> None:
        super().__init__()
        width = settings.width
        self.first_norm = nn.LayerNorm(width, bias=settings.bias)
        self.attention = DecoderAttention(settings)
        self.second_norm = nn.LayerNorm(width, bias=settings.bias)
        self.mlp = Experts(settings) if settings.experts else Mlp(settings)
        self.dropout = settings.dropout

    def forward(self, states: Tensor) -> Tensor:
        states = self._add(states, *self.attention(self.first_norm(states)))
        return self._add(states, *self.mlp(self.second_norm(states)))

    def _add(self, states: Tensor, change: Tensor, bias: Tensor | None) -> Tensor:
        """Bias, dropout and the sum are one kernel where there is more than the sum."""
        if bias is None and not self.dropout:
            return states + change
        keeps: kernels.Keeps = "mask" if self.dropout else "nothing"
        return kernels.pointwise(change, states, *([] if bias is None else [bias]), keeps=keeps)


class _Layer(nn.Linear):
    """A linear layer with simple initial weights: networks of a trillion parameters are built quickly."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=_SPREAD)


class Linear(_Layer):
    """A linear layer that leaves its bias to the next kernel."""

    def forward(self, states: Tensor) -> Tensor:
        return F.linear(states, self.weight)


class DecoderAttention(nn.Module):
    """Causal self-attention."""

    def __init__(self, settings: LanguageSettings) -> None:
        super().__init__()
        self.settings, size = settings, settings.head_width
        self.heads, self.kv_heads = settings.heads, settings.key_heads
        columns = (settings.heads + 2 * settings.key_heads) * size
        self.queries_keys_values = _Layer(settings.width, columns, bias=settings.bias)
        self.out = Linear(settings.width, settings.width, bias=settings.bias)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor | None]:
        n, length, _ = states.shape
        size, groups = self.settings.head_width, self.settings.heads // self.settings.key_heads
        mixed = self.queries_keys_values(states).view(n, length, -1, groups + 2, size)
        query, key, value = (
            part.reshape(n, length, -1, size).transpose(1, 2) for part in mixed.split((groups, 1, 1), 3)
        )
        if self.settings.positions == "rotary":
            query, key = (kernels.pointwise(t, keeps="nothing") for t in (query, key))
        seen = self._attend(query, key, value)
        return self.out(seen.transpose(1, 2).reshape(n, length, -1)), self.out.bias

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        dropout = self.settings.dropout if self.training else 0.0
        if self.settings.attention == "flash":
            return F.scaled_dot_product_attention(
                query,
                key,
                value,
                is_causal=True,
                dropout_p=dropout,
                enable_gqa=key.shape[1] != query.shape[1],
            )
        if self.settings.attention == "first-flash":
            return kernels.first_flash(query, key, value)
        weights = torch.softmax(query @ key.transpose(-1, -2), -1)
        return (F.dropout(weights, dropout) if dropout else weights) @ value


class Mlp(nn.Module):
    """Two layers with GELU, or three with SwiGLU."""

    def __init__(self, settings: LanguageSettings) -> None:
        super().__init__()
        inner = settings.mlp_width
        self.gated = settings.gated
        kind = _Layer if settings.gated else Linear
        self.widen = kind(settings.width, (1 + settings.gated) * inner, bias=settings.bias)
        self.narrow = Linear(inner, settings.width, bias=settings.bias)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor | None]:
        wide = self.widen(states)
        if self.gated:
            gate, up = wide.chunk(2, -1)
            return self.narrow(F.silu(gate) * up), self.narrow.bias
        bias = self.widen.bias
        active = F.gelu(wide, approximate="tanh") if bias is None else kernels.pointwise(wide, bias)
        return self.narrow(active), self.narrow.bias


class Experts(nn.Module):
    """A mixture: a router gives each token to some experts. Tokens are spread evenly."""

    def __init__(self, settings: LanguageSettings) -> None:
        super().__init__()
        self.active = settings.active
        self.router = _Layer(settings.width, settings.experts, bias=False)
        self.experts = ExpertList(Mlp(settings) for _ in range(settings.experts))

    def forward(self, states: Tensor) -> tuple[Tensor, None]:
        n, length, width = states.shape
        shares = torch.softmax(self.router(states).float(), -1)[..., : self.active]
        tokens = states.unsqueeze(2).expand(n, length, self.active, width).reshape(-1, width)
        tokens = self.experts.send(tokens)
        parts = tokens.chunk(len(self.experts.members))
        found = [_with_bias(*expert(part)) for expert, part in zip(self.experts.members, parts, strict=True)]
        back = self.experts.send(torch.cat(found)).view(n, length, self.active, width)
        return (back * shares.unsqueeze(-1).to(back.dtype)).sum(2), None


class ExpertList(nn.Module):
    """The experts of one worker; `send` brings tokens to the workers of their experts and back.

    Expert-parallel workers keep some of the experts and replace `send`.
    """

    def __init__(self, experts: Iterable[nn.Module]) -> None:
        super().__init__()
        for number, expert in enumerate(experts):
            self.add_module(str(number), expert)

    @property
    def members(self) -> list[nn.Module]:
        return list(self.children())

    def send(self, tokens: Tensor) -> Tensor:
        return tokens


def _with_bias(states: Tensor, bias: Tensor | None) -> Tensor:
    return states if bias is None else states + bias


class MixedAdamW(torch.optim.Optimizer):
    """AdamW as frameworks run it: on a copy of the weights in fp32, as few kernels over all tensors.

    Gradients of micro-batches are added up in `gradients`; each micro-batch's own is freed at once.
    """

    def __init__(self, params: Iterable[nn.Parameter], settings: LanguageSettings) -> None:
        super().__init__(list(params), {"lr": _RATE})
        self.settings = settings
        if settings.gradients != settings.weights:
            for parameter in self._parameters():
                parameter.main_grad = torch.zeros_like(parameter, dtype=_DTYPES[settings.gradients])
                parameter.register_post_accumulate_grad_hook(_add_up)

    def _parameters(self) -> list[Any]:
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=set_to_none)
        sums = [p.main_grad for p in self._parameters() if hasattr(p, "main_grad")]
        if sums:
            torch._foreach_zero_(sums)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            parameters = [p for p in self._parameters() if hasattr(p, "main_grad") or p.grad is not None]
            gradients = [getattr(p, "main_grad", p.grad) for p in parameters]
            if self.settings.clip:
                norm = torch.stack(torch._foreach_norm(gradients)).norm()
                torch._foreach_mul_(gradients, (1.0 / (norm + 1e-6)).clamp(max=1.0))
            self._update(parameters, gradients)

    def _update(self, parameters: list[Any], gradients: list[Tensor]) -> None:
        states = [self._state(p) for p in parameters]
        copies = [state.get("copy", p) for state, p in zip(states, parameters, strict=True)]
        if gradients[0].dtype != torch.float32:
            gradients = [g.float() for g in gradients]
        torch._fused_adamw_(
            copies,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            lr=_RATE,
            beta1=0.9,
            beta2=0.95,
            weight_decay=0.1,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
        if copies[0] is not parameters[0]:
            torch._foreach_copy_(parameters, copies)

    def _state(self, parameter: Any) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(parameter, dtype=torch.float32)
            if parameter.dtype != torch.float32:
                state["copy"] = torch.zeros_like(parameter, dtype=torch.float32)
        return state


def _add_up(parameter: Any) -> None:
    parameter.main_grad.add_(parameter.grad)
    parameter.grad = None
