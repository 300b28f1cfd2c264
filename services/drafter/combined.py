"""Several drafting methods for one session.

Rules:

1.  Chains: at every ask the methods have their turn in the order they were named, and
    the first that has tokens gives the draft; it becomes text for all of them. So a
    chain stays a chain and drafting ahead goes on. A tree of all their drafts
    would end at every verdict: nothing can be drafted behind a tree.
2.  Under rejection (`STANDARD`, `BLOCK`), too, but whoever has drawn a token goes on until
    no token is left that is not committed. So whose turn it is, and with it the time that
    a draft takes, follows from no token that was drawn and is still to be judged; see
    `VerifyMode.exact_match`. Each token has a law given the tokens before it, and that is
    what the rules ask for (Leviathan et al., 2211.17192; Sun et al., 2403.10444): a drawn
    token its own, a copied one all mass on itself. Where drafts are matched exactly
    (`GREEDY`, `COUPLED`) none is sent.
3.  Draft lengthening (Ouroboros, Zhao et al., 2402.13720): at the end of a window, its last
    `lengthen` places, a draft that has begun is continued in the opposite order. So
    `model,ngram` ends a model's draft with a phrase or a copy, which costs no forward.
4.  Trees (more than one candidate asked for), where drafts are matched exactly only: the
    drafts of all methods for one text are merged, common prefixes shared, in the order of
    the methods, up to `MAX_TREE_NODES`. It leaves when every method has given its draft.
    (SpecInfer, Miao et al., 2305.09781, rejects candidates of several drafters in turn,
    each with a law of its own; a draft here holds one law for each node.)
5.  A method that has not taken in the prompt is asked though another one drafts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from services.contract.errors import InvalidRequest
from services.contract.states import NO_STATES, StateShape
from services.contract.types import (
    LATER_FORMATS,
    DraftTree,
    OpenDraft,
    Proposal,
    SparseRow,
    VerifyMode,
    WorkerDescription,
    source_of,
    split_methods,
)
from services.drafter.comb import MAX_TREE_NODES
from services.drafter.protocol import (
    Ask,
    Drafter,
    KVUsage,
    Proposed,
    SessionKey,
    TakesStates,
    capabilities,
    states_needed,
)


class Methods:
    """The methods of a worker by name, and any of them together.

    A name of several, joined by commas, is that of what drafts with exactly these.
    """

    def __init__(self, drafters: Mapping[str, Drafter], lengthen: int = 0) -> None:
        self._drafters = dict(drafters)
        self._lengthen = lengthen
        self._combined: dict[tuple[str, ...], CombinedDrafter] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The methods, each alone; the first is the default."""
        return tuple(name for name in self._drafters if "," not in name)

    def find(self, method: str) -> Drafter | None:
        """The method, or several joined by commas; empty = the first; None = not all are here."""
        names = split_methods(method) or self.names[:1]
        if not set(names) <= set(self.names) or len(set(names)) < len(names):
            return None
        if (own := self._drafters.get(",".join(names))) is not None:
            return own
        if names not in self._combined:
            members = {name: self._drafters[name] for name in names}
            self._combined[names] = CombinedDrafter(members, self._lengthen)
        return self._combined[names]

    def refusal(self, method: str, mode: VerifyMode) -> str:
        """Why this method drafts no session of this mode; empty = it does."""
        drafter = self.find(method)
        if drafter is None:
            return f"no method {method!r} here; there is {', '.join(self.names)}"
        if mode not in drafter.modes:
            return f"method {method or self.names[0]!r} does not draft in mode {mode.name}"
        return ""

    def describe(self, worker: WorkerDescription, shape: StateShape) -> WorkerDescription:
        """`worker` with these methods, and what they are bound to; `shape`: of their states.

        Capabilities: `<method>:sampled` draws its drafts and sends their law, `<method>:tree`
        drafts several candidates per node, `<method>:states` drafts from states of the target;
        and which response formats may be sent.
        """
        able = tuple(capabilities({name: self._drafters[name] for name in self.names}))
        worker = replace(
            worker,
            methods=self.names,
            capabilities=(*able, *LATER_FORMATS, *worker.capabilities),
            state_layers=shape.layers,
            state_width=shape.width,
        )
        for drafter in self._drafters.values():
            worker = drafter.describe(worker)
        return worker


@dataclass(slots=True)
class _Session:
    """What is kept of one session. Members are known by their place in the order."""

    trees: bool
    exact: bool
    """Drafts are matched exactly: no law goes with them."""
    cold: set[int]
    """Members that may not have the prompt yet."""
    text: tuple[int, int] = (-1, -1)
    """Draft key and length of the text that `drafts` are for."""
    drafts: dict[int, Proposed] = field(default_factory=dict)
    drew: int | None = None
    """The member that drew tokens of the tail, under rejection."""

    def forget(self) -> None:
        """The text is another one."""
        self.text, self.drafts = (-1, -1), {}


class CombinedDrafter:
    """Drafts with the first of its members that has something, or with all; see the rules.

    Members serve other sessions, too; their K/V is counted with them.
    """

    samples = False
    trees = True

    def __init__(self, members: Mapping[str, Drafter], lengthen: int = 0) -> None:
        """`members`: by name, in their order."""
        self._members = tuple(members.values())
        self._lengthen = lengthen
        # Of tokens of which a member does not say so itself.
        self._sources = [source_of(name) for name in members]
        self._sessions: dict[SessionKey, _Session] = {}

    @property
    def modes(self) -> frozenset[VerifyMode]:
        """Those that all members serve."""
        return frozenset(VerifyMode).intersection(*(member.modes for member in self._members))

    @property
    def needed_states(self) -> StateShape:
        """What a member needs; all that need any need the same."""
        needed = (states_needed(member) for member in self._members)
        return next((shape for shape in needed if shape.layers), NO_STATES)

    def anchor(self, key: SessionKey, position: int, states: bytes) -> None:
        """Rows for the members that take them."""
        for member in self._members:
            if isinstance(member, TakesStates) and member.needed_states.layers:
                member.anchor(key, position, states)

    def describe(self, worker: WorkerDescription) -> WorkerDescription:
        """Nothing beside what the members say."""
        return worker

    def usage(self) -> KVUsage:
        """No KV but the members' own."""
        return KVUsage()

    def open(self, key: SessionKey, opening: OpenDraft) -> None:
        """Open the session with all members, or, if one refuses, with none.

        Raises InvalidRequest for trees under rejection.
        """
        exact = opening.mode.exact_match
        if opening.num_candidates > 1 and not exact:
            allowed = f"1 in mode {opening.mode.name} for several methods together"
            raise InvalidRequest("num_candidates", opening.num_candidates, allowed)
        opened: list[Drafter] = []
        try:
            for member in self._members:
                member.open(key, opening)
                opened.append(member)
        except Exception:
            for member in opened:
                member.close(key)
            raise
        members = set(range(len(self._members)))
        self._sessions[key] = _Session(opening.num_candidates > 1, exact, members)

    def rewind(self, key: SessionKey, length: int) -> None:
        """The text is shorter for all."""
        self._sessions[key].forget()
        for member in self._members:
            member.rewind(key, length)

    def close(self, key: SessionKey) -> None:
        """Close the session with all members."""
        if self._sessions.pop(key, None) is not None:
            for member in self._members:
                member.close(key)

    def propose(self, asks: Sequence[Ask]) -> list[Proposed]:
        """The members' turns, each with all sessions that wait for it, then one draft each."""
        for ask in asks:
            if len(ask.text) == ask.committed_length:
                self._sessions[ask.key].drew = None
        given: dict[SessionKey, dict[int, Proposed]] = {ask.key: {} for ask in asks}
        order = range(len(self._members))
        for last, places in ((False, order), (True, reversed(order))):
            group = [ask for ask in asks if self._at_the_end(ask) is last]
            for place in places:
                self._turn(place, group, given)
        return [self._answer(ask, given[ask.key]) for ask in asks]

    def idle(self, asks: Iterable[Ask]) -> bool:
        """The moment is the first member's that can use it."""
        known = list(asks)
        return any(member.idle(known) for member in self._members)

    def _at_the_end(self, ask: Ask) -> bool:
        """Whether a chain has begun and is to be lengthened."""
        begun = len(ask.text) > ask.committed_length
        return begun and ask.room <= self._lengthen and not self._sessions[ask.key].trees

    def _turn(
        self, place: int, asks: Sequence[Ask], given: Mapping[SessionKey, dict[int, Proposed]]
    ) -> None:
        """One member drafts for all sessions that wait for it."""
        waiting = [ask for ask in asks if self._asks(ask, place, given[ask.key])]
        answers = self._members[place].propose(waiting) if waiting else []
        for ask, proposed in zip(waiting, answers, strict=True):
            given[ask.key][place] = proposed
            if not proposed.fed:
                self._sessions[ask.key].cold.discard(place)

    def _asks(self, ask: Ask, place: int, given: Mapping[int, Proposed]) -> bool:
        """Whether a member has a turn."""
        session = self._sessions[ask.key]
        if session.trees:
            return session.text != _text(ask) or place not in session.drafts
        if place in session.cold:
            return True
        if session.drew is not None:
            return place == session.drew
        return not any(len(proposed.tree) for proposed in given.values())

    def _answer(self, ask: Ask, given: Mapping[int, Proposed]) -> Proposed:
        session = self._sessions[ask.key]
        if session.trees:
            return self._merged(session, ask, given)
        if session.drew is not None:
            given = {place: own for place, own in given.items() if place == session.drew}
        place = next((place for place, proposed in given.items() if len(proposed.tree)), None)
        if place is None:
            return _nothing(given.values())
        draft = given[place]
        if not session.exact and draft.tree.q is not None:
            session.drew = place
        tree = _plain(draft.tree) if session.exact else _sampled(draft.tree)
        sources = self._said(place, draft)
        return Proposed(tree, recalled=draft.recalled, sources=sources)

    def _said(self, place: int, draft: Proposed) -> bytes:
        """The source of each token of a member's draft."""
        return draft.sources or bytes((self._sources[place],)) * len(draft.tree)

    def _merged(self, session: _Session, ask: Ask, given: Mapping[int, Proposed]) -> Proposed:
        if session.text != _text(ask):
            session.text, session.drafts = _text(ask), {}
        for place, proposed in given.items():
            if len(proposed.tree) or proposed.final:
                session.drafts[place] = proposed
        if len(session.drafts) < len(self._members):
            return replace(_nothing(given.values()), final=False)
        drafts = [session.drafts[place] for place in range(len(self._members))]
        session.forget()
        said = [self._said(place, draft) for place, draft in enumerate(drafts)]
        tree, sources = merge([draft.tree for draft in drafts], said)
        recalled = min(len(tree), sum(draft.recalled for draft in drafts))
        return Proposed(tree, final=not len(tree), recalled=recalled, sources=sources)


def merge(
    drafts: Sequence[DraftTree], said: Sequence[bytes], most: int = MAX_TREE_NODES
) -> tuple[DraftTree, bytes]:
    """One tree with the paths of all drafts, those of the first ones first, cut at `most` nodes.

    `said`: the source of each node of each draft; a node of several is the first one's.
    """
    nodes: dict[tuple[int, int], int] = {}
    sources = bytearray()
    for draft, own in zip(drafts, said, strict=True):
        places = {-1: -1}
        for node, (above, token) in enumerate(_edges(draft)):
            edge = (places.get(above, most), token)
            if edge not in nodes and edge[0] < most and len(nodes) < most:
                nodes[edge] = len(nodes)
                sources.append(own[node])
            if edge in nodes:
                places[node] = nodes[edge]
    parents = tuple(parent for parent, _ in nodes)
    tree = DraftTree(tuple(token for _, token in nodes), parents).normal()
    return tree, bytes(sources)


def _edges(draft: DraftTree) -> Iterator[tuple[int, int]]:
    """Parent and token of every node, parents first."""
    return zip(draft.every_parent, draft.token_ids, strict=True)


def _nothing(given: Iterable[Proposed]) -> Proposed:
    """No tokens: final if nobody has more to come, waiting if nobody has without waiting."""
    answers = list(given)
    final = all(proposed.final for proposed in answers)
    idle = all(proposed.final or proposed.waits for proposed in answers)
    return Proposed(
        final=final, fed=sum(proposed.fed for proposed in answers), waits=idle and not final
    )


def _plain(tree: DraftTree) -> DraftTree:
    return replace(tree, q=None, proposal=Proposal.ONE_HOT, without_replacement=False)


def _sampled(chain: DraftTree) -> DraftTree:
    """The chain with the law of each token; that of a copied one is all on itself."""
    copied = tuple(SparseRow((token,), (1.0,)) for token in chain.token_ids)
    return replace(chain, q=chain.q or copied, proposal=Proposal.SAMPLED)


def _text(ask: Ask) -> tuple[int, int]:
    return ask.draft_key, len(ask.text)
