"""What is trained: the job, one training step, lessons, jobs of public libraries."""
