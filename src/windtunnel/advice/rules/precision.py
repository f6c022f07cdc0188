"""A shorter number format for products and convolutions, where the device computes it faster."""

from __future__ import annotations

from windtunnel import units
from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange
from windtunnel.families import FAMILIES
from windtunnel.forecast.price import has_format
from windtunnel.machine.machine import Device

_AUTOCAST = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
_COSTS = {
    "tf32": "products keep 10 of 23 bits of the mantissa: check that the loss falls as before",
    "bf16": "products keep 7 of 23 bits of the mantissa; weights and updates stay fp32. Check that the loss "
    "falls as before",
    "fp16": "small gradients become 0: scale the loss with torch.amp.GradScaler, whose own time is not "
    "forecast",
}
_SOURCE = (
    "PyTorch, automatic mixed precision; the machine's rates; forecasts in each format against 108 measured "
    "steps of an H200 (docs/accuracy.md)"
)


def propose(situation: Situation) -> Answer:
    now = situation.strategy.precision
    if now in _AUTOCAST:
        return f"the step runs in {now} already"
    known = situation.machine.device.flop_rates
    fast = [
        name for name in ("tf32", "bf16", "fp16") if _is_fast(situation.machine.device, name) and name != now
    ]
    if not fast:
        return f"{situation.machine.device.model} has no faster number format than fp32"
    if "bf16" in fast and not situation.thorough:
        fast = [name for name in fast if name != "fp16"]  # about as fast, and it needs a scaler
    products = situation.family_seconds(*_PRODUCTS)
    whole = units.show(situation.forecast.step_seconds, "s")
    used = _format_now(situation)
    return tuple(
        Proposal(
            name=f"precision {name}",
            change=StepChange(strategy={"precision": name}),
            flag=f"--precision {name}",
            code=_code(name, "cuda" if situation.on_gpu else "cpu"),
            reason=f"matrix products and convolutions take {units.show(products, 's')} of device time in a "
            f"step of {whole}; the rate in {name} is {known[name] / known[used]:.1f} times that in {used}",
            costs=_COSTS[name],
            source=_SOURCE,
        )
        for name in fast
    )


_PRODUCTS = tuple(family.name for family in FAMILIES if family.uses_tensor_cores)
_BY_CUDNN = tuple(family.name for family in FAMILIES if family.uses_tensor_cores and family.is_cudnn_call)


def _format_now(situation: Situation) -> str:
    """The number format of most products: by default cuDNN's calls use tf32, where the device has it."""
    now = situation.strategy.precision
    by_cudnn = situation.family_seconds(*_BY_CUDNN) > situation.family_seconds(*_PRODUCTS) / 2
    is_tf32 = now == "tf32" or (now == "pytorch" and by_cudnn)
    return "tf32" if is_tf32 and has_format(situation.machine.device, "tf32") else "fp32"


def _is_fast(device: Device, name: str) -> bool:
    return has_format(device, name) and device.flop_rates[name] > device.flop_rates.get("fp32", 0.0)


def _code(name: str, device: str) -> str:
    if name == "tf32":
        return 'torch.set_float32_matmul_precision("high")'
    return f'with torch.autocast("{device}", dtype={_AUTOCAST[name]}): loss = loss_of(model, batch)'


RULE = AdviceRule(name="precision", about="tf32, bf16 or fp16, by what the device has", propose=propose)
