"""What a verifier says of chains, for verifiers that know the text without a model."""

from collections.abc import Sequence

from services.contract.types import Verdict, Verify


def overlap(block: Verify, last: Verdict | None, length: int) -> int | None:
    """Draft tokens at the front of the block that end the text already; None = it does not fit.

    `last`: the last verdict of the session, `length`: that of its output. A block that
    extends another one is a chain; it fits if that was accepted whole, and if it stands behind
    all that was emitted, or its own first token is the bonus.
    """
    if block.extends_round == 0:
        return 0 if block.base_len == length else None
    if last is None or last.round != block.extends_round or not last.all_accepted:
        return None
    if block.base_len == length:
        return 0
    if block.base_len != last.base_len + last.accepted:
        return None
    return 1 if block.tree.token_ids[:1] == last.token_ids[-1:] else None


def judged(block: Verify, base_len: int, tokens: Sequence[int], own: Sequence[int]) -> Verdict:
    """The verdict on draft tokens that follow output[:base_len]: what is right, and one more.

    `tokens`: those of the block that are not committed yet; `own`: the target's from there on,
    one more than are drafted.
    """
    pairs = enumerate(zip(tokens, own, strict=False))
    accepted = next((i for i, (drafted, right) in pairs if drafted != right), len(tokens))
    about = block.session, block.epoch, block.round
    emitted, whole = tuple(own[: accepted + 1]), accepted == len(tokens)
    return Verdict(*about, base_len, emitted, accepted, whole, draft_tokens=len(tokens))
