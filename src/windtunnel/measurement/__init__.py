"""Measures real training steps in child processes and stores every sample."""
