"""Which factor matters most for a job: each is varied alone by forecast, and the effects are ranked."""
