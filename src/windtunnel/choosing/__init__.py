"""From a task to a network: the guide's rules, and its ladder from shallow to deep on the user's own data."""
