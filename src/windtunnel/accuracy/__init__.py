"""Forecasts against measured steps."""
