"""Published experiments as data: their cells, results, claims and crossovers."""
