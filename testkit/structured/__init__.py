"""Outputs of a given form through a cluster that is disturbed: each must be of its form."""
