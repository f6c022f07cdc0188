"""Training to a target on real data, with learning curves and checkpoints."""
