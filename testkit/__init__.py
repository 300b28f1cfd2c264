"""Faults and hostile clients on real processes, for tests and for CI."""
