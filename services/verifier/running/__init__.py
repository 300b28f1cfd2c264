"""The verifier that runs its sessions: a step after the other, with the drafts that are there.

    output    the text so far, and its hashes
    mailbox   the newest draft of a session, as far as it follows the text
    session   one session: text, K/V, credit, draft
    turns     what one session does in a step
    deciding  from the logits of a step to the tokens of each session
    telling   from decisions to frames, and who waits
    core      commands in, one forward for all that can, one frame a link out

Nobody asks for a round. A session ends by a command alone, and rests while it has no credit.
"""
