"""Intervals, effects and comparisons of a study's rows."""
