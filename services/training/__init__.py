"""What is learned of a target: drafts, look-ahead embeddings, n-grams, masks."""
