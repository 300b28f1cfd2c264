"""Drafts as hypotheses, from protocol 2 on: each says which text it is of, and the newest counts.

`session` the text of one session and what is drafted behind it, `core` the worker.
"""
