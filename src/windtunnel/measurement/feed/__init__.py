"""Measure how a job is fed from files: PyTorch's DataLoader beside the job's own step."""
