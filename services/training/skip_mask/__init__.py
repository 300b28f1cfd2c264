"""Searching the sub-layers that a target can skip while it drafts for itself.

train        the whole search
search       which mask to measure next
speculation  what one costs, timed; figures: the sums
"""
