"""Clocks: child processes that run real steps, and the store their samples lie in."""
