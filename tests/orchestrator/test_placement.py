from dataclasses import replace

from orchestrator.workers.placement import Candidate, Wanted, choose
from services.contract.states import NO_STATES, StateShape
from services.contract.types import Progress, Role, WorkerDescription


def worker(name: str, role: Role = Role.VERIFIER, *, assigned=0, draining=False, **load):
    description = WorkerDescription(
        name, role, model_fingerprint="m", tokenizer_fingerprint="t", methods=("model",)
    )
    return Candidate(description, Progress(kv_tokens_capacity=1000, **load), assigned, draining)


VERIFIER = Wanted(Role.VERIFIER, tokens=100)
DRAFTER = Wanted(Role.DRAFTER, tokens=100, methods=("model",), tokenizer_fingerprint="t")


def test_the_least_loaded_worker_is_chosen():
    assert choose([worker("a", assigned=2), worker("b", assigned=1)], VERIFIER) == "b"


def test_a_shorter_queue_decides_between_equals():
    assert choose([worker("a", queued_tokens=9), worker("b", queued_tokens=1)], VERIFIER) == "b"


def test_a_worker_without_room_for_the_session_is_not_chosen():
    assert choose([worker("a", kv_tokens_used=950)], VERIFIER) is None


def test_a_drafter_must_run_all_the_methods() -> None:
    both = replace(worker("b", Role.DRAFTER).description, methods=("ngram", "model"))
    known = [worker("a", Role.DRAFTER), Candidate(both, Progress())]
    wanted = replace(DRAFTER, methods=("model", "ngram"))
    assert choose(known, wanted) == "b"
    assert choose(known[:1], wanted) is None


def test_a_worker_that_is_stuck_gets_a_session_only_where_there_is_no_other():
    stuck = replace(worker("a"), stuck_s=1.5)
    assert choose([stuck, worker("b", assigned=9)], VERIFIER) == "b"
    assert choose([stuck, worker("b", assigned=9)], VERIFIER, knows="a") == "b"
    assert choose([stuck, worker("b", kv_tokens_used=950)], VERIFIER) == "a"
    assert choose([stuck, worker("b")], replace(VERIFIER, avoid=("b",))) == "b"


def test_a_worker_is_not_stuck_in_what_a_few_of_its_steps_explain():
    slow = replace(worker("a", step_ms=2000.0), stuck_s=8.5)
    assert choose([slow, worker("b", assigned=1)], VERIFIER) == "a"
    assert choose([replace(slow, stuck_s=9.5), worker("b", assigned=1)], VERIFIER) == "b"


def test_completions_of_one_prompt_stay_together_where_they_fit():
    together = replace(VERIFIER, company=("a",))
    assert choose([worker("a", assigned=9), worker("b")], together) == "a"
    assert choose([worker("a", kv_tokens_used=950), worker("b")], together) == "b"
    assert choose([worker("a"), worker("b")], replace(together, avoid=("a",))) == "b"
    assert choose([worker("a", draining=True), worker("b")], together) == "b"


def test_a_draining_worker_is_not_chosen():
    assert choose([worker("a", draining=True)], VERIFIER) is None


def test_only_the_same_target_continues_a_session():
    assert choose([worker("a")], Wanted(Role.VERIFIER, model_fingerprint="other")) is None


def test_a_drafter_needs_the_targets_tokenizer_and_the_method():
    drafter = worker("d", Role.DRAFTER)
    assert choose([drafter], DRAFTER) == "d"
    assert choose([drafter], Wanted(Role.DRAFTER, tokenizer_fingerprint="x")) is None
    assert choose([drafter], Wanted(Role.DRAFTER, methods=("ngram",))) is None


def test_a_drafter_without_a_tokenizer_works_with_any():
    anyone = Candidate(WorkerDescription("n", Role.DRAFTER, methods=("ngram",)), Progress())
    assert choose([anyone], Wanted(Role.DRAFTER, tokenizer_fingerprint="x")) == "n"


def test_a_worker_that_failed_the_session_comes_last():
    busy = worker("b", assigned=5)
    assert choose([worker("a"), busy], Wanted(Role.VERIFIER, avoid=("a",))) == "b"
    assert choose([worker("a")], Wanted(Role.VERIFIER, avoid=("a",))) == "a"


def test_a_drafter_that_can_what_is_asked_comes_before_an_idle_one_that_cannot():
    able = worker("b", Role.DRAFTER, assigned=5)
    able = replace(
        able, description=replace(able.description, capabilities=("model:sampled", "model:tree"))
    )
    wanted = replace(DRAFTER, capabilities=("model:tree",))
    assert choose([worker("a", Role.DRAFTER), able], wanted) == "b"
    assert choose([worker("a", Role.DRAFTER), able], DRAFTER) == "a"
    assert choose([worker("a", Role.DRAFTER)], wanted) == "a"


def test_a_drafter_in_the_verifiers_process_comes_before_a_less_loaded_one():
    judge = replace(worker("v", assigned=1), address="10.0.0.1:1")
    near = replace(worker("near", Role.DRAFTER, assigned=5), address="10.0.0.1:1")
    everyone = [judge, near, replace(worker("far", Role.DRAFTER), address="10.0.0.2:1")]
    assert choose(everyone, DRAFTER) == "far"
    assert choose(everyone, replace(DRAFTER, beside="v")) == "near"
    assert choose(everyone, replace(DRAFTER, beside="gone")) == "far"
    assert choose(everyone, replace(DRAFTER, beside="v", avoid=("near",))) == "far"


def test_a_verifier_that_knows_the_texts_beginning_comes_before_an_idle_one():
    known = [worker("a"), worker("b", assigned=2)]
    assert choose(known, VERIFIER) == "a"
    assert choose(known, VERIFIER, knows="b") == "b"
    assert choose(known, VERIFIER, knows="gone") == "a"


def test_but_not_before_one_with_much_less_to_do_nor_if_it_failed_or_has_no_room():
    assert choose([worker("a"), worker("b", assigned=3)], VERIFIER, knows="b") == "a"
    busy = [worker("a", assigned=10), worker("b", assigned=17), worker("c", assigned=18)]
    assert choose(busy, VERIFIER, knows="b") == "b"
    assert choose(busy, VERIFIER, knows="c") == "a"
    failed = replace(VERIFIER, avoid=("b",))
    assert choose([worker("a"), worker("b")], failed, knows="b") == "a"
    full = worker("b", kv_tokens_used=950)
    assert choose([worker("a"), full], VERIFIER, knows="b") == "a"


SHAPE = StateShape((1, 3), 8)


def told(name: str, *, layers: int = 4, width: int = 4):
    judge = worker(name)
    able = replace(
        judge.description, capabilities=("states",), hidden_layers=layers, hidden_width=width
    )
    return replace(judge, description=able)


def needing(name: str, shape: StateShape = SHAPE):
    drafter = worker(name, Role.DRAFTER)
    able = replace(
        drafter.description,
        capabilities=("model:states",),
        state_layers=shape.layers,
        state_width=shape.width,
    )
    return replace(drafter, description=able)


def test_a_drafter_that_needs_states_is_chosen_where_these_very_states_are_told():
    wanted = replace(DRAFTER, states=SHAPE)
    assert choose([needing("d")], wanted) == "d"
    assert choose([needing("d")], DRAFTER) is None
    assert choose([needing("d", StateShape((1, 2), 8))], wanted) is None
    assert choose([needing("d"), worker("e", Role.DRAFTER)], DRAFTER) == "e"
    # Its other methods need none.
    other = replace(needing("d").description, methods=("model", "ngram"))
    assert choose([Candidate(other, Progress())], replace(DRAFTER, methods=("ngram",))) == "d"


def test_where_no_states_are_told_a_drafter_of_other_methods_too_is_chosen_and_no_other():
    untold = replace(DRAFTER, states=SHAPE, untold=True)
    both = replace(needing("d").description, methods=("ngram", "model"))
    candidates = [Candidate(both, Progress())]
    assert choose(candidates, untold) is None
    assert choose(candidates, replace(untold, methods=("ngram", "model"))) == "d"
    assert choose(candidates, replace(untold, methods=("ngram", "model"), states=NO_STATES)) is None
    assert choose([worker("e", Role.DRAFTER)], untold) == "e"


def test_a_verifier_that_tells_the_states_comes_before_one_that_cannot():
    wanted = replace(VERIFIER, states=SHAPE)
    assert choose([worker("a"), told("b")], wanted) == "b"
    assert choose([worker("a"), told("b", layers=2)], wanted) == "a"
    assert choose([worker("a"), told("b", width=5)], wanted) == "a"
    assert choose([worker("a"), told("b")], VERIFIER) == "a"


def test_what_was_placed_since_a_report_counts():
    told = [worker("a", sessions=3), worker("b", sessions=4)]
    assert choose(told, VERIFIER) == "a"
    assert choose([replace(told[0], fresh=2), told[1]], VERIFIER) == "b"
    assert choose([replace(worker("a", kv_tokens_used=500), fresh_tokens=450)], VERIFIER) is None


def test_what_was_placed_counts_as_if_every_orchestrator_had_placed_as_much():
    alone, shared = worker("a", sessions=3, links=1), worker("a", sessions=3, links=10)
    other = worker("b", sessions=8, links=10)
    assert choose([replace(alone, fresh=1), other], VERIFIER) == "a"
    assert choose([replace(shared, fresh=1), other], VERIFIER) == "b"


def test_a_verifier_that_knows_the_prefix_keeps_it_whatever_other_orchestrators_may_place():
    knows = replace(worker("a", sessions=3, links=100), fresh=1)
    assert choose([knows, worker("b", sessions=3, links=100)], VERIFIER, knows="a") == "a"


def test_equal_workers_come_in_an_order_of_the_orchestrators_own():
    equal = [worker("a"), worker("b")]
    assert choose(equal, VERIFIER) == "a"
    assert choose([replace(equal[0], order=9), replace(equal[1], order=4)], VERIFIER) == "b"
