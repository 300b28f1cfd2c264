"""What computes: the native engine, and one that sleeps instead."""
