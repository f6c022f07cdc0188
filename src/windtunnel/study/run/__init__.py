"""Run the cells of a study and store the results."""
