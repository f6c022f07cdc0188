"""How workers combine what they learn, in simulated time: synchronous, asynchronous, mixed and local.

A form (`forms/`) turns the times of the workers' steps into the times at which the shared weights change. The
times come from the forecast (`costs.py`) and from how much workers differ (`variation.py`).
"""
