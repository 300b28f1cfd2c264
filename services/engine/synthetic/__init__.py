"""Workers without models: forwards that take given times and say tokens of a made-up world.

Everything around the forwards is the real thing, in its real processes: cores, rules,
links, orchestrator, store and client. So what the rest costs can be measured at speeds
that this hardware does not have.

    spec         the file that `--synthetic` names: times, and how often drafts are right
    agreement    at which places of an output the drafter says what the target says
    world        the token at every place of every output
    laws         what both draw from, where they are not sure of that token
    vocabulary   a small tokenizer to go with it
    costs        how long a forward takes
    pacemaker    waiting until exactly then
    engine       all of it, as an engine
"""
