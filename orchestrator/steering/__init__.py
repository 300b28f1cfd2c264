"""Steers sessions whose verifiers run them by themselves."""
