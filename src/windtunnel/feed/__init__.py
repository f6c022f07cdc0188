"""How a job is fed: the gain of each remedy for a device that waits for data, and the guide's worked
example."""
