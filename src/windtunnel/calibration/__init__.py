"""Where clocks and forecasts meet: probe a machine, fit what was seen, write it down as a profile."""
