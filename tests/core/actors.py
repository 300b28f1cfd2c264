"""The workers of the simulated cluster, and the book of what was drafted.

Where drafts are matched exactly the target has one next token after every text,
`truth`. Where they are judged by rejection it has two, `allowed`: the drafter
draws one of them anew in every epoch, a bonus is drawn without a look at the
draft, and a token that is not allowed is rejected.
"""

from dataclasses import dataclass, field, replace
from hashlib import blake2b

from services.contract import types as t

VOCABULARY = 997
TREE_DEPTH = 3
Text = tuple[int, ...]


def draw(kind: bytes, seed: int, text: Text) -> int:
    """64 bits that depend on nothing else."""
    packed = b"".join(token.to_bytes(4, "little") for token in text)
    digest = blake2b(packed, key=kind + seed.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def truth(text: Text) -> int:
    """The target's next token."""
    return 1 + draw(b"target", 0, text) % (VOCABULARY - 1)


def allowed(mode: t.VerifyMode, text: Text) -> Text:
    """The tokens that the target may say next."""
    first = truth(text)
    return (first,) if mode.exact_match else (first, 1 + first % (VOCABULARY - 1))


def row_of(text: Text, token: int) -> t.SparseRow | None:
    """The law that the drafter sends with a token, or None where it forgets to."""
    forgets = draw(b"row", 0, text) % 5 == 0
    return None if forgets else t.SparseRow((token, token + 1), (0.75, 0.25))


@dataclass
class Ledger:
    """Everything that any drafter drafted, by epoch and by the text before it."""

    mode: t.VerifyMode
    tokens: dict[tuple[int, Text], int] = field(default_factory=dict)
    # A new window may have a tree drafted again, to another depth.
    trees: dict[tuple[int, Text], list[t.DraftTree]] = field(default_factory=dict)
    places: set[tuple[int, int]] = field(default_factory=set)
    furthest: dict[int, int] = field(default_factory=dict)

    def write(self, epoch: int, text: Text, tree: t.DraftTree, levels: int) -> None:
        # A tree that is asked for twice after one text is the same: draws are keyed.
        again = tree in self.trees.get((epoch, text), [])
        if tree.is_chain:
            self.tokens[epoch, text] = tree.token_ids[0]
        else:
            self.trees.setdefault((epoch, text), []).append(tree)
        for place in range(len(text), len(text) + levels):
            fresh = self.mode.exact_match or again or (epoch, place) not in self.places
            assert fresh, f"place {place} was drawn twice in epoch {epoch}"
            self.places.add((epoch, place))
            self.furthest[epoch] = max(place, self.furthest.get(epoch, -1))


@dataclass
class SimVerifier:
    """The verifier's side of the protocol; an `older` one takes no block behind a bonus."""

    mode: t.VerifyMode
    text: list[int] = field(default_factory=list)
    older: bool = False
    opened: bool = False
    last: t.Verdict | None = None
    outcomes: dict[int, t.Verdict] = field(default_factory=dict)

    def verify(self, block: t.Verify) -> t.Verdict:
        if block.round not in self.outcomes:
            self.last = self.outcomes[block.round] = self._decide(block)
        return self.outcomes[block.round]

    def _decide(self, block: t.Verify) -> t.Verdict:
        tree, base, last = block.tree, block.base_len, self.last
        refused = t.Verdict(
            block.session, block.epoch, block.round, base, discarded=True, mode=self.mode
        )
        if block.extends_round:
            if last is None or last.round != block.extends_round or not last.all_accepted:
                return refused
            if len(last.token_ids) > last.accepted and (self.older or base != len(self.text)):
                if not tree.is_chain or tree.token_ids[:1] != last.token_ids[-1:]:
                    return refused
                tree, base = t.DraftTree(tree.token_ids[1:]), base + 1
        return refused if base != len(self.text) else self._walk(block, tree, base)

    def _walk(self, block: t.Verify, tree: t.DraftTree, base: int) -> t.Verdict:
        path, leaf = self._path(tree)
        out = [tree.token_ids[node] for node in path]
        if not leaf or block.want_bonus or not tree.token_ids:
            choices = allowed(self.mode, (*self.text, *out))
            out.append(choices[draw(b"own", block.round, (*self.text, *out)) % len(choices)])
        self.text += out
        return t.Verdict(
            block.session,
            block.epoch,
            block.round,
            base,
            tuple(out),
            len(path),
            leaf,
            accepted_nodes=() if tree.is_chain else tuple(path),
            mode=self.mode,
            verify_ms=0.5,
            bad_q_rows=sum(not row.token_ids for row in tree.q or ()),
            draft_tokens=len(tree),
            near_ties=len(out) // 2 if self.mode.exact_match else 0,
        )

    def _path(self, tree: t.DraftTree) -> tuple[list[int], bool]:
        parents = tree.parents or tuple(range(-1, len(tree) - 1))
        path: list[int] = []
        while True:
            here = path[-1] if path else -1
            children = [node for node, parent in enumerate(parents) if parent == here]
            choices = allowed(self.mode, (*self.text, *(tree.token_ids[n] for n in path)))
            taken = next((n for n in children if tree.token_ids[n] in choices), None)
            if taken is None:
                return path, not children
            path.append(taken)


@dataclass
class SimDrafter:
    """The drafter's side of the protocol, guessing what the target may say."""

    accuracy: float
    seed: int
    ledger: Ledger
    width: int = 1
    epoch: int = 0
    known: int = 0
    window: int = 0
    limit: int = 0
    turn: bool = False
    text: list[int] = field(default_factory=list)
    rollbacks: int = 0

    def guess(self, text: Text) -> int:
        mode = self.ledger.mode
        # Noise that is shared is a function of the place alone; other draws are the epoch's.
        seed = self.seed if mode.exact_match else self.seed + (self.epoch << 34)
        if draw(b"coin", seed, text) % 10_000 < self.accuracy * 10_000:
            choices = allowed(mode, text)
            return choices[draw(b"choice", seed, text) % len(choices)]
        return 1 + draw(b"wrong", seed, text) % (VOCABULARY - 1)

    def open(self, message: t.OpenDraft) -> None:
        self.epoch, self.text = message.epoch, list(message.committed)
        self.known, self.limit = len(self.text), message.sampling.max_tokens
        self.width = message.num_candidates
        self.credit(message.window)

    def credit(self, window: int) -> None:
        self.window, self.turn = window, window > 0

    def commit(self, message: t.CommitDraft) -> bool:
        """False if a commit is missing before this one."""
        if message.epoch < self.epoch:
            return True
        end = message.base_len + len(message.token_ids)
        bumped = message.epoch > self.epoch
        if end < self.known or (end == self.known and not bumped):
            return True
        if message.base_len > len(self.text):
            return False
        committed = [*self.text[: message.base_len], *message.token_ids]
        tail = self.text[end:] if self.text[:end] == committed and not bumped else []
        self.rollbacks += len(self.text) > end and not tail
        self.rollbacks += len(self.text) <= end and self.text != committed[: len(self.text)]
        self.text, self.known, self.epoch = committed + tail, end, message.epoch
        self.turn = self.window > 0
        return True

    def draft(self, session: str) -> t.Draft | None:
        """One token more, or a tree; the last draft of a turn says that it is."""
        if not self.turn:
            return None
        before, epoch = tuple(self.text), self.epoch
        room = min(self.window - len(before) + self.known, self.limit - len(before))
        tree = t.DraftTree()
        if room > 0:
            tree = self._comb(before, min(room, TREE_DEPTH)) if self.width > 1 else self._token()
        final = room <= 1 or not tree.is_chain
        self.turn = not final
        prefix = t.extend_hash(t.EMPTY_HASH, before)
        return t.Draft(session, epoch, self.known, len(before), prefix, tree, final, draft_ms=1.0)

    def _token(self) -> t.DraftTree:
        text = tuple(self.text)
        tree = t.DraftTree((self.guess(text),))
        self.ledger.write(self.epoch, text, tree, 1)
        self.text += tree.token_ids
        if self.ledger.mode is t.VerifyMode.COUPLED:
            return replace(tree, proposal=t.Proposal.COUPLED)
        if self.ledger.mode.exact_match:
            return tree
        row = row_of(text, tree.token_ids[0])
        return replace(tree, q=(row,) if row else None, proposal=t.Proposal.SAMPLED)

    def _comb(self, text: Text, levels: int) -> t.DraftTree:
        """A path of guesses, at each step among others that lead nowhere."""
        tokens: list[int] = []
        parents: list[int] = []
        here, path = -1, text
        for _ in range(levels):
            guess, rank = self.guess(path), draw(b"rank", self.seed, path) % self.width
            others = [1 + (guess + 7 * i) % (VOCABULARY - 1) for i in range(1, self.width)]
            parents += [here] * self.width
            here = len(tokens) + rank
            tokens += [*others[:rank], guess, *others[rank:]]
            path = (*path, guess)
        tree = t.DraftTree(tuple(tokens), tuple(parents))
        self.ledger.write(self.epoch, text, tree, levels)
        return tree
