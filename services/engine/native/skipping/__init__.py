"""Forwards with some sub-layers left out, as self-speculative decoding drafts.

sublayers   finding them in a model and leaving them out
skipper     a model that can skip, checked
"""
