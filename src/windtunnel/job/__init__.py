"""Jobs: what is trained, one training step, lessons, and networks of public libraries."""
