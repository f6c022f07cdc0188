"""Training to a target: real data, learning curves, checkpoints."""
