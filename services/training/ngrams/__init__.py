"""The n-gram file of a target: `paceline learn-ngrams`."""
