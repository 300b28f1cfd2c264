"""How much of its drafts a verifier verifies in a step, over all sessions together.

Each session offers the draft that it has. A draft token is worth its chance to be accepted, and
costs what a row more makes the step longer, for everybody in it. So the tokens are taken from the
likeliest on, up to where tokens by time are most:

    (sessions + sum of chances) / ms(sessions, tokens)

Of several sessions, drafts lengthen a step by at most `LENGTHEN`, unless most of every tenant's
gain more than that by their own; and where that binds, tenants take turns. So nobody's predictable
text makes another's steps much longer.

What a drawn token is has no part in whether it is verified: its chance is learned from how often
tokens at its depth were accepted, never read off the token. Where drafts are matched exactly, the
drafter's own chances are used, corrected by what came of them.

A session waits for drafts that come late where that brings more by time; see `patience`. One whose
drafts do not pay rests: its drafter is told to be 0 tokens ahead. After a while it
tries again, and rests twice as long if they still do not. So does one whose drafts come too late to
bring anything, and whoever comes new to its tenant and source begins with that rest. A crowd rests
where all of it gains more by time without drafts; see `crowd_trial`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from services.contract.types import StepTime
from services.scheduling.crowd_trial import LEAST, CrowdTrial
from services.scheduling.offers import Allotment, Judged, Offer
from services.scheduling.patience import Patience
from services.scheduling.step_costs import StepCosts
from services.scheduling.tree_budget import EDGES, believed, range_of

LENGTHEN = 1.15
"""Most that drafts make a step longer while somebody in it gains less."""
KEEP = 0.97
"""Discount of earlier drafts, per draft: about thirty count."""
TRUST = 4.0
"""Drafts, or nodes of a range of chances, that a first estimate counts for."""
FIRST = 0.6
"""The chance of a first token of which nothing is known, and of one behind an accepted one."""
HOPE = 0.02
"""Of the newest step in what a session's drafts promise."""
FEW = 0.1
"""Share of a tenant's sessions that may gain less than drafts make a step longer."""
NEW = 4
"""Steps before which nobody knows what a session may hope for."""
LEAST_CHANCE, LEAST_IN_A_CROWD = 0.03, 0.08
"""Of a token that is worth drafting ahead: by a drafter with time to spare, and by others."""
UNPAID = 8
"""Drafts in a row that did not pay, after which a session rests."""
SHORTEST_REST, LONGEST_REST = 16, 256
"""Steps of a session."""
LOOK = 16
"""Steps of a session in which it shows what drafts bring that come late."""
LEAST_GAIN = 0.1
"""Accepted draft tokens a step that are worth a drafter."""
TRIALS = 2
"""Drafts behind a rest that are verified whether they pay or not, one token of each."""
MOST_KNOWN = 1024
"""Tenants and sources that are remembered."""
LONGEST_HOLD = 1.0
"""Seconds for which `FIXED` waits for a draft."""
NOTHING = Allotment()
FIXED, EAGER, MATCHED = "fixed", "eager", "matched"
"""Baselines: a whole draft is waited for; all that is there; as deep as a step takes to draft."""


@dataclass(slots=True)
class _Share:
    """Discounted hits among discounted tries."""

    hits: float = 0.0
    tries: float = 0.0

    def add(self, hits: float, tries: float) -> None:
        if tries:
            self.hits = KEEP * self.hits + hits
            self.tries = KEEP * self.tries + tries

    def rate(self, prior: float, trust: float = TRUST) -> float:
        return (self.hits + trust * prior) / (self.tries + trust)


@dataclass(slots=True)
class _Acceptance:
    """How often drafts are accepted: their first tokens, later ones, and nodes by their chances."""

    first: _Share = field(default_factory=_Share)
    later: _Share = field(default_factory=_Share)
    nodes: list[_Share] = field(default_factory=lambda: [_Share() for _ in range(len(EDGES) + 1)])
    holds: bool = False
    """Whether sessions wait for their drafts."""
    vain: bool = False
    """Whether the last one that tried to wait did so in vain."""
    rest: int = 0
    """Steps that a session rests for at its begin, as drafts come too late."""

    def add(self, own: Judged) -> None:
        if own.reach:
            taken = set(own.path) if own.tree else set(range(own.accepted))
            for node, chance in enumerate(own.reach[: own.judged]):
                self.nodes[range_of(chance)].add(node in taken, chance)
        tried = min(own.accepted + 1, own.judged)
        self.first.add(min(own.accepted, 1), min(tried, 1))
        self.later.add(max(0, own.accepted - 1), max(0, tried - 1))


@dataclass(slots=True)
class _Look:
    """What drafts brought in some steps: tokens that came, were judged and accepted."""

    steps: int = 0
    came: int = 0
    judged: int = 0
    accepted: int = 0

    @property
    def in_vain(self) -> bool:
        """Whether most tokens came too late, and the others brought next to nothing."""
        return self.came > 2 * self.judged and self.accepted < LEAST_GAIN * self.steps


@dataclass(slots=True)
class _Session:
    tenant: Hashable
    source: str
    acceptance: _Acceptance = field(default_factory=_Acceptance)
    unpaid: int = 0
    rest: int = 0
    """Steps that it rests for yet."""
    rested: int = SHORTEST_REST
    """How long it rested last."""
    late_rest: int = SHORTEST_REST
    """How long it rests if its drafts come too late."""
    trials: int = 0
    patience: Patience = field(default_factory=Patience)
    late: _Look = field(default_factory=_Look)
    baseline: bool = False
    counted: bool = False
    """Whether it is one of the crowd that is drafted for."""
    drafted: bool = False
    """Whether its last step judged a draft."""
    steps: int = 0
    hoped: float = 1.0
    """Tokens a step that its drafts promise, lately."""


class DraftBudget:
    """The policy of a verifier. One thread uses it."""

    def __init__(self, told: Sequence[StepTime] = ()) -> None:
        """`told`: what a step of one session took by its rows, where that was measured."""
        self.costs = StepCosts(told)
        self._sessions: dict[Hashable, _Session] = {}
        self._known: OrderedDict[tuple[Hashable, str], _Acceptance] = OrderedDict()
        self._of_all: dict[str, _Acceptance] = {}
        self._crowd = CrowdTrial()
        self._drafted_for = 0
        """Sessions of the crowd."""

    # --- before a step ------------------------------------------------------------

    def allot(self, offers: Sequence[Offer]) -> list[Allotment]:
        """How much of each offer a step verifies; of every session in it, also without a draft."""
        sessions = [self._counted(own) for own in offers]
        allotted = [self._baseline(own) if own.pacing else NOTHING for own in offers]
        forced = sum(own.tokens for own in allotted if not own.hold_s)
        self._share_out(offers, sessions, forced, allotted)
        if not self._crowd.drafts:
            return allotted
        ms = self.costs.ms(len(offers), forced) if offers else 0.0
        for place, session in enumerate(sessions):
            if session.patience.holds and not (session.rest or session.baseline):
                hold_s = self._hold_s(offers[place], session.patience, ms)
                allotted[place] = allotted[place]._replace(hold_s=hold_s)
        return allotted

    def _counted(self, offer: Offer) -> _Session:
        """A session that somebody drafts for is one of the crowd, unless it is a baseline's."""
        session, counts = self._session(offer), offer.drafted_for and not offer.pacing
        if session.counted != counts:
            session.counted = counts
            self._drafted_for += 1 if counts else -1
        return session

    def _hold_s(self, offer: Offer, patience: Patience, step_ms: float) -> float:
        """For how long the session waits for more of its draft."""
        chances = self.chances(offer._replace(tokens=offer.window, reach=(), tree=False))
        return patience.hold_s(offer.tokens, offer.final, chances, step_ms)

    def _baseline(self, offer: Offer) -> Allotment:
        self._session(offer).baseline = True
        most = min(offer.tokens, offer.window)
        if offer.pacing == FIXED:
            whole = offer.final or offer.tokens >= offer.window
            return Allotment(most, 0.0 if whole else LONGEST_HOLD)
        if offer.pacing == MATCHED and offer.draft_ms:
            most = min(most, max(1, round(self.costs.ms(1, most) / offer.draft_ms)))
        return Allotment(most)

    def _share_out(
        self,
        offers: Sequence[Offer],
        sessions: Sequence[_Session],
        forced: int,
        allotted: list[Allotment],
    ) -> None:
        """Allot what pays; `forced`: tokens of baselines, which are in the step anyway."""
        ranked = self._ranked(offers)
        if not ranked:
            return
        table = self.costs.table(len(offers), forced + len(ranked))[forced:]
        counts, hoped = _paying(ranked, offers, sessions, table)
        if self.costs.stale(len(offers)):
            return
        for place, (offer, session) in enumerate(zip(offers, sessions, strict=True)):
            if not offer.tokens or offer.pacing:
                continue
            pays = hoped[place] > 1.0
            if count := _settled(session, counts[place], pays=pays):
                allotted[place] = Allotment(count)

    def _ranked(self, offers: Sequence[Offer]) -> list[tuple[float, int]]:
        """(chance, place of the offer) of every token, the likeliest first."""
        ranked = [
            (chance, place)
            for place, own in enumerate(offers)
            if own.tokens and not own.pacing
            for chance in self.chances(own)[: own.window]
        ]
        # Stable, and falling within an offer: so each beginning has beginnings of the drafts.
        ranked.sort(key=lambda one: -one[0])
        return ranked

    def chances(self, offer: Offer) -> list[float]:
        """The chance of each offered token to be accepted; it never rises."""
        own = self._session(offer).acceptance
        of_tenant, of_all = self._known_of(offer.tenant, offer.source)
        if offer.exact and offer.reach:
            factors = [
                share.rate(tenant.rate(all_.rate(1.0)))
                for share, tenant, all_ in zip(
                    own.nodes, of_tenant.nodes, of_all.nodes, strict=True
                )
            ]
            return believed(offer.reach, factors)
        first, later = self._rates(self._session(offer))
        if offer.tree:
            # Which node is at which level is its drafter's: each is worth as much.
            levels = sum(first * later**level for level in range(max(1, offer.depth)))
            return [levels / offer.tokens] * offer.tokens
        return [first * later**depth for depth in range(offer.tokens)]

    # --- behind a step ------------------------------------------------------------

    def judged(self, own: Judged) -> None:
        """What became of a session's draft in a step."""
        session = self._sessions.get(own.key)
        if session is None or not own.judged:
            return
        session.drafted = True
        session.late.judged += own.judged
        session.late.accepted += own.accepted
        for known in (session.acceptance, *self._known_of(session.tenant, session.source)):
            known.add(own)

    def stepped(self, sessions: int, extra: int, ms: float) -> None:
        """A step without prompts, with so many draft tokens beside its sessions, took `ms`."""
        if sessions and ms > 0:
            self.costs.observe(sessions, extra, ms)

    def drafted(self, key: Hashable, tokens: int, ms: float, final: bool) -> None:
        """A draft of so many tokens came for a session, in time or late."""
        if (session := self._sessions.get(key)) is not None:
            session.patience.drafted(tokens, ms, whole=final)
            session.late.came += tokens

    def advanced(self, key: Hashable, tokens: int, seconds: float) -> None:
        """A step brought a session so many tokens, so long after the one before."""
        session = self._sessions.get(key)
        if session is None:
            return
        drafted, session.drafted = session.drafted, False
        if session.counted:
            self._crowd.advanced(self._drafted_for, tokens, seconds)
        if not (self._crowd.drafts or session.baseline):
            session.late = _Look()
            return
        if session.rest:
            session.rest -= 1
            session.trials = TRIALS if not session.rest else 0
            session.late = _Look()
            return
        session.patience.advanced(tokens, seconds, judged=drafted)
        session.late.steps += 1
        if session.patience.holds or session.baseline:
            session.late = _Look()
        elif session.late.steps >= LOOK:
            self._look(session)

    def _look(self, session: _Session) -> None:
        """Let a session rest whose drafts come too late."""
        of_tenant, _ = self._known_of(session.tenant, session.source)
        if session.late.in_vain:
            session.rest = of_tenant.rest = session.late_rest
            session.late_rest = min(2 * session.late_rest, LONGEST_REST)
        else:
            session.late_rest, of_tenant.rest = SHORTEST_REST, 0
        session.late = _Look()

    def window(self, key: Hashable, most: int) -> int:
        """How far a session's drafter is to be ahead: 0 while it rests, else while drafts may hold.

        A token further on is likely to be drafted in vain, and costs what a useful one costs.
        """
        session = self._sessions.get(key)
        if session is None or session.baseline:
            return most
        if session.rest or not self._crowd.drafts:
            return 0
        first, later = self._rates(session)
        least = LEAST_CHANCE if self._drafted_for < LEAST else LEAST_IN_A_CROWD
        ahead, chance = 1, first
        while ahead < most and chance * later >= least:
            ahead, chance = ahead + 1, chance * later
        return ahead

    def forget(self, key: Hashable) -> None:
        """A session is gone; what it taught stays with its tenant and source."""
        if (session := self._sessions.pop(key, None)) is not None:
            of_tenant, _ = self._known_of(session.tenant, session.source)
            of_tenant.holds, of_tenant.vain = session.patience.holds, session.patience.vain
            self._drafted_for -= session.counted

    # --- what is known ------------------------------------------------------------

    def _session(self, offer: Offer) -> _Session:
        found = self._sessions.get(offer.key)
        if found is None or found.source != offer.source:
            of_tenant, _ = self._known_of(offer.tenant, offer.source)
            patience = Patience(of_tenant.holds, of_tenant.vain)
            rest = of_tenant.rest
            found = _Session(offer.tenant, offer.source, rest=rest, patience=patience)
            found.late_rest = max(SHORTEST_REST, rest)
            self._sessions[offer.key] = found
        return found

    def _rates(self, session: _Session) -> tuple[float, float]:
        """The chances of a first token, and of one behind an accepted one."""
        own = session.acceptance
        of_tenant, of_all = self._known_of(session.tenant, session.source)
        return (
            own.first.rate(of_tenant.first.rate(of_all.first.rate(FIRST))),
            own.later.rate(of_tenant.later.rate(of_all.later.rate(FIRST))),
        )

    def _known_of(self, tenant: Hashable, source: str) -> tuple[_Acceptance, _Acceptance]:
        """Of a source: what is known of a tenant's drafts, and of everybody's."""
        found = self._known.get((tenant, source))
        if found is None:
            found = self._known[tenant, source] = _Acceptance()
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end((tenant, source))
        of_all = self._of_all.get(source)
        if of_all is None:
            of_all = self._of_all[source] = _Acceptance()
        return found, of_all


def _paying(
    ranked: Sequence[tuple[float, int]],
    offers: Sequence[Offer],
    sessions: Sequence[_Session],
    ms: Sequence[float],
) -> tuple[list[int], list[float]]:
    """How many tokens of each offer pay, and what a step would bring each if nobody paid for it.

    `ms`: what so many of the tokens cost together.
    """
    best = _most_by_time(ranked, len(offers), ms)
    hoped = [1.0] * len(offers)
    for chance, place in ranked[:best]:
        hoped[place] += chance
    if len(offers) > 1 and ms[best] > _least(sessions, hoped) * ms[0]:
        most = _within(LENGTHEN * ms[0], ms, best)
        ranked = _in_turns(ranked, offers)
        best = _most_by_time(ranked[:most], len(offers), ms)
    counts = [0] * len(offers)
    for _, place in ranked[:best]:
        counts[place] += 1
    return counts, hoped


def _settled(session: _Session, count: int, *, pays: bool) -> int:
    """The count; of a draft that does not pay one token where that is tried.

    One that pays, and for which there is no room among others, does not let its session rest.
    """
    if count or pays:
        session.unpaid = session.trials = 0
        session.rested = SHORTEST_REST
        return count
    if session.trials:
        session.trials -= 1
        return 1
    session.unpaid += 1
    if session.unpaid >= UNPAID:
        session.rest, session.unpaid = session.rested, 0
        session.rested = min(2 * session.rested, LONGEST_REST)
    return 0


def _least(sessions: Sequence[_Session], hoped: Sequence[float]) -> float:
    """The least tokens a step that most of a tenant's sessions may hope for, lately."""
    by_tenant: dict[Hashable, list[float]] = {}
    for session, tokens in zip(sessions, hoped, strict=True):
        session.hoped += HOPE * (tokens - session.hoped) if session.steps else tokens - 1.0
        session.steps += 1
        if session.steps > NEW:
            by_tenant.setdefault(session.tenant, []).append(session.hoped)
    return min((sorted(own)[int(FEW * len(own))] for own in by_tenant.values()), default=math.inf)


def _most_by_time(ranked: Sequence[tuple[float, int]], sessions: int, ms: Sequence[float]) -> int:
    """How many of the first ones bring most tokens by time; `ms`: what so many of them cost."""
    best, greatest, tokens = 0, sessions / ms[0], float(sessions)
    for count, (chance, _) in enumerate(ranked, 1):
        tokens += chance
        if tokens > greatest * ms[count]:
            best, greatest = count, tokens / ms[count]
    return best


def _within(longest: float, ms: Sequence[float], most: int) -> int:
    """How many tokens, `most` at most, fit a step of so many milliseconds."""
    over = (count - 1 for count in range(1, most + 1) if ms[count] > longest)
    return next(over, most)


def _in_turns(
    ranked: Sequence[tuple[float, int]], offers: Sequence[Offer]
) -> Sequence[tuple[float, int]]:
    """The tokens so that tenants take turns, each with its likeliest ones first."""
    if len({own.tenant for own in offers}) == 1:
        return ranked
    turns: dict[Hashable, int] = {}
    placed = []
    for chance, place in ranked:
        tenant = offers[place].tenant
        turn = turns.get(tenant, 0)
        turns[tenant] = turn + 1
        placed.append((turn, -chance, place))
    placed.sort()
    return [(-chance, place) for _, chance, place in placed]
