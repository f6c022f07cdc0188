"""Run the cells of a study and keep what they say."""
