"""Advice: what to change in a job, what it gains, and proof. `engine.advise` is the entry."""
