"""What a verifier says of blocks, for verifiers that know the text without a model."""

from __future__ import annotations

from collections.abc import Sequence

from services.contract.types import DraftTree, Verdict, Verify


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
    one more than are drafted, or fewer where its text ends.
    """
    nodes: tuple[int, ...] = ()
    if block.tree.is_chain:
        pairs = enumerate(zip(tokens, own, strict=False))
        ends = min(len(tokens), len(own))
        accepted = next((i for i, (drafted, right) in pairs if drafted != right), ends)
        whole = accepted == len(tokens)
    else:
        nodes, whole = walked(block.tree, own)
        accepted = len(nodes)
    return Verdict(
        block.session,
        block.epoch,
        block.round,
        base_len,
        tuple(own[: accepted + 1]),
        accepted,
        whole,
        accepted_nodes=nodes,
        draft_tokens=len(tokens),
    )


def walked(tree: DraftTree, own: Sequence[int]) -> tuple[tuple[int, ...], bool]:
    """The nodes down a tree that are the target's own tokens, and whether they end at a leaf."""
    parents, path, at = tree.every_parent, [], -1
    below = [node for node, parent in enumerate(parents) if parent == at]
    for token in own:
        at = next((node for node in below if tree.token_ids[node] == token), -1)
        if at < 0:
            break
        path.append(at)
        below = [node for node, parent in enumerate(parents) if parent == at]
    return tuple(path), not below
