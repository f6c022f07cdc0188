"""A user's job in a process of its own, which cannot take this one down. A trace comes back as plain data."""
