"""The verifier that runs its sessions: a step after the other, with the drafts that are there.

    output    the text so far, and its hashes
    mailbox   the newest draft of a session, as far as it follows the text
    pacing    the simplest policy

Nobody asks for a round. A session ends by a command alone, and rests while it has no credit.
"""
