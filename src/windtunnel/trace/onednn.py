"""Workspaces that oneDNN's calls allocate and their fake kernels do not."""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.families.recurrent import onednn_workspace_bytes

_LSTM = torch.ops.aten.mkldnn_rnn_layer.default


def with_workspace(func: Any, args: Any, result: Any) -> Any:
    """The results of an op; an LSTM's have the workspace that its backward needs, which is empty in PyTorch's
    fake kernel."""
    if func is not _LSTM or not args[-1]:  # the last argument: whether this is training
        return result
    source, hidden = args[0], args[2].shape[-1]
    timesteps, examples, inputs = source.shape
    size = onednn_workspace_bytes(timesteps, examples, inputs, hidden)
    return (*result[:3], torch.empty(size, dtype=torch.uint8))
