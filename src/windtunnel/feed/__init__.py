"""How a job is fed: what each remedy for a starved device buys, and the guide's worked example."""
