"""The workers of a simulated cluster, and the book of what was drafted and judged.

Where drafts are matched exactly the target has one next token after every text,
`truth`. Where they are judged by chance it has two, `allowed`: a drafter draws one of them anew
for each draft, the target's own token is drawn without a look at the draft, and a token that is
not allowed is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from services.contract import types as t
from services.contract.frames import DraftName, StepEnd, StepRow
from services.contract.worker_messages import StartDraft, StartVerify

VOCABULARY = 997
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


@dataclass(frozen=True)
class SimDraft:
    """Tokens behind a text."""

    name: DraftName
    before: Text
    tokens: Text


@dataclass
class Book:
    """By which draft each place was judged, of which no drawn token may be judged twice."""

    mode: t.VerifyMode
    judged: set[tuple[int, DraftName, int]] = field(default_factory=set)
    drafted: dict[tuple[int, DraftName, Text], int] = field(default_factory=dict)

    def draft(self, term: int, name: DraftName, text: Text, token: int) -> None:
        known = self.drafted.setdefault((term, name, text), token)
        assert known == token, "a place was drawn twice for one draft"

    def judge(self, term: int, name: DraftName, text: Text, token: int) -> None:
        assert self.drafted[term, name, text] == token, "a token was judged after another text"
        fresh = self.mode.exact_match or (term, name, len(text)) not in self.judged
        assert fresh, "a drawn token was judged twice"
        self.judged.add((term, name, len(text)))


@dataclass
class SimVerifier:
    """A verifier that runs one session while it has credit."""

    mode: t.VerifyMode
    seed: int
    book: Book
    opened: StartVerify | None = None
    started: bool = False
    text: Text = ()
    limit: int = 0
    steps: int = 0
    draft: SimDraft | None = None

    def open(self, message: StartVerify) -> bool:
        """Whether it is news."""
        if self.opened is not None and message.opening <= self.opened.opening:
            return False
        self.opened, self.text, self.limit = message, message.output, message.limit
        self.started, self.steps, self.draft = False, 0, None
        return True

    def end(self) -> None:
        self.opened, self.started = None, False

    def grant(self, limit: int) -> None:
        self.limit = max(self.limit, limit)

    def put(self, draft: SimDraft) -> None:
        """The mailbox: the newest draft that follows the text."""
        if self.opened is None or draft.name.opening < self.opened.first_drafts:
            return
        held = self.draft
        if held is not None and held.name == draft.name:
            if held.before + held.tokens == draft.before:
                self.draft = SimDraft(held.name, held.before, held.tokens + draft.tokens)
        elif held is None or held.name < draft.name:
            self.draft = draft if self.text[: len(draft.before)] == draft.before else held

    def _held(self) -> tuple[DraftName, Text]:
        """What still follows from the text."""
        held = self.draft
        if held is None:
            return DraftName(), ()
        whole = held.before + held.tokens
        if whole[: len(self.text)] != self.text:
            self.draft = None
            return DraftName(), ()
        return held.name, whole[len(self.text) :]

    @property
    def may_step(self) -> bool:
        if self.opened is None or not self.started:
            return False
        room = self.opened.sampling.max_tokens - len(self.text)
        return room > 0 and len(self.text) < self.limit

    def step(self) -> StepRow:
        assert self.opened is not None
        self.steps += 1
        before, opening, term = self.text, self.opened.opening, self.opened.term
        name, tokens = self._held()
        room = self.opened.sampling.max_tokens - len(before)
        judged = tokens[: min(self.opened.window, room)]
        accepted = 0
        text = before
        for token in judged:
            self.book.judge(term, name, text, token)
            if token not in allowed(self.mode, text):
                break
            text, accepted = (*text, token), accepted + 1
        judged = judged[: accepted + 1]
        end = StepEnd.NONE
        if len(text) - len(before) < room:
            choices = allowed(self.mode, text)
            key = (term << 32) | (opening << 16) | self.steps
            text = (*text, choices[draw(b"own", key, text) % len(choices)])
            end = StepEnd.BONUS if accepted == len(judged) else StepEnd.RECOVERED
        self.text = text
        return StepRow(
            *(self.opened.handle, opening, len(before), text[len(before) :], accepted, judged),
            end=end,
            name=name if judged else DraftName(),
            queue_ms=0.25,
            near_ties=self._sometimes(b"near", text) if self.mode.exact_match else 0,
            bad_q_rows=0 if self.mode.exact_match else self._sometimes(b"rows", text),
        )

    def _sometimes(self, kind: bytes, text: Text) -> int:
        return int(not draw(kind, self.seed, text) % 4)


@dataclass
class SimDrafter:
    """A drafter, guessing what the target may say."""

    accuracy: float
    seed: int
    book: Book
    opened: StartDraft | None = None
    known: Text = ()
    tail: Text = ()
    number: int = 0
    window: int = 0
    rollbacks: int = 0
    lost: bool = False

    def open(self, message: StartDraft) -> bool:
        if self.opened is not None and message.opening <= self.opened.opening:
            return False
        self.opened, self.known, self.tail = message, message.output, ()
        self.number, self.window, self.lost = 0, message.window, False
        return True

    def end(self) -> None:
        self.window, self.lost = 0, True

    def take(self, row: StepRow) -> bool:
        """False if a step is missing before this one."""
        if self.opened is None or self.lost:
            return True
        if row.position > len(self.known):
            self.lost = True
            return False
        end = row.position + len(row.tokens)
        if end <= len(self.known):
            return True
        whole, text = self.known + self.tail, self.known[: row.position] + row.tokens
        agrees = whole[:end] == text[: len(whole)]
        self.known = text
        if agrees and len(whole) >= end:
            self.tail = whole[end:]
        else:
            self.rollbacks += not agrees
            self.tail, self.number = (), self.number + 1
        return True

    def draft(self) -> SimDraft | None:
        """One token more."""
        if self.opened is None or self.lost or len(self.tail) >= self.window:
            return None
        before = self.known + self.tail
        if len(before) >= self.opened.sampling.max_tokens:
            return None
        name = DraftName(self.opened.opening, self.number)
        token = self._guess(before, name)
        self.book.draft(self.opened.term, name, before, token)
        self.tail += (token,)
        return SimDraft(name, before, (token,))

    def _guess(self, text: Text, name: DraftName) -> int:
        mode = self.book.mode
        # Noise that is shared is a function of the place alone; other draws are the draft's.
        seed = self.seed if mode.exact_match else self.seed + (hash(name) % (1 << 30))
        if draw(b"coin", seed, text) % 10_000 < self.accuracy * 10_000:
            choices = allowed(mode, text)
            return choices[draw(b"choice", seed, text) % len(choices)]
        return 1 + draw(b"wrong", seed, text) % (VOCABULARY - 1)
