"""From a trace to seconds and bytes: arithmetic only, no clock, no file, no framework."""
