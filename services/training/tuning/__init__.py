"""Searching the sub-layers that a target can skip while it drafts for itself."""
