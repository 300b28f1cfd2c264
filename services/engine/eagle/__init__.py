"""Heads on a target's hidden states, EAGLE-3 (Li et al., 2503.01840), as engines that draft.

layout     the folders that such heads are published in
head       what they compute
engine     the engine, and its caches
"""
