"""Training an EAGLE-3 head: one layer that drafts from its target's own states.

head       the head as the training has it
beginning  what it begins as: a linear fit
states     the target's states of all texts, computed once and kept on disk
lessons    texts gathered for a step
learner    several draft steps at once, as drafting has them
stored     the folder of a finished head
"""
