"""Faults on a cluster of real processes, and what must hold through all of them."""
