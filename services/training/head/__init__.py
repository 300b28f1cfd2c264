"""Training an EAGLE-3 head: one layer that drafts from its target's own states.

train      the whole run
vocabulary the tokens that it knows
head       the head as the training has it
beginning  what it begins as: a linear fit
states     the target's states of all texts, computed once and kept on disk
learner    texts side by side, several draft steps at once, as drafting has them
stored     the folder of a finished head
"""
