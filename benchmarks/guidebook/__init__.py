"""Writes the beginner's guide (docs/guide): its numbers, pictures and pages. See benchmarks/guide.py."""
