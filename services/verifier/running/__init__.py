"""The verifier that runs its sessions: a step after the other, with the drafts that are there.

    output      the text so far, and its hashes
    mailbox     the newest draft of a session, as far as it follows the text
    session     one session: text, K/V, credit, draft
    turns       what one session does in a step
    dropped     what came of draft tokens that were never verified
    drafting    drafts in mailboxes, and the policy: how much of them a step verifies
    own_drafts  a proposer in this process
    sessions    all sessions: how they begin and end, and what a failure costs
    reading     texts on their way to their first step: prompts, forms, K/V that was given up
    pace        what steps take, and how much of a prompt they may have
    choosing    who takes part in a step
    deciding    from the logits of a step to the tokens of each session
    telling     from decisions to frames, and who waits
    outcome     texts grow, a frame a link leaves, then who failed
    core        commands in, and a step: choose, forward, hear, conclude

Nobody asks for a round. A session ends by a command alone, and rests while it has no credit.
"""
