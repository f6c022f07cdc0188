"""The same forms of exchange, run for real: one process for each worker, on torch.distributed."""
