"""What a person reads: text, charts and one-file pages of results that other modules compute."""
