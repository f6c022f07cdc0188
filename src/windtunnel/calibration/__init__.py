"""Probe a machine, fit what was timed, and write the result as a profile."""
