"""Distilling a drafter from a target: its own texts, a small student, a training run."""
