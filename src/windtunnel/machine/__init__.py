"""Machines: their descriptions, this machine, and the profiles that probes measured."""
