"""What a person reads: text, charts and one-file pages, made of results that others have worked out."""
