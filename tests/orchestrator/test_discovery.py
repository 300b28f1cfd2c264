"""What discovery tells the pool."""

from orchestrator.workers.discovery import Speakers, Subsetting, tell
from orchestrator.workers.subset import Member
from services.contract.types import Role, WorkerDescription
from services.runtime.registry import RegisteredWorker


class Told:
    """A pool that remembers what it is told."""

    def set_addresses(self, role, addresses, beyond) -> None:
        self.role, self.near, self.beyond = role, addresses, beyond


def listed(count: int, role: Role = Role.VERIFIER) -> list[RegisteredWorker]:
    return [
        RegisteredWorker(WorkerDescription(f"{role.value}-{n}", role), f"{role.value}:{n}")
        for n in range(count)
    ]


def told(size: int, *, fixed=(), workers=None) -> Told:
    pool, me = Told(), Member("o1")
    subsetting = Subsetting(me, size, peers=None) if size else None
    peers = [me, Member("o2"), Member("o3")]
    tell(pool, Role.VERIFIER, fixed, workers or listed(9), subsetting, peers)
    return pool


def test_without_a_subset_all_workers_of_the_role_are_connected():
    pool = told(0, fixed=("own:1",), workers=[*listed(4), *listed(3, Role.DRAFTER)])
    assert pool.near == {"own:1", *(f"verifier:{n}" for n in range(4))}
    assert (pool.role, pool.beyond) == (Role.VERIFIER, {})


def test_with_a_subset_the_others_are_known_by_their_ids():
    pool = told(4)
    assert len(pool.near) == 4
    assert len(pool.beyond) == 5
    assert pool.beyond == {
        f"verifier-{n}": f"verifier:{n}" for n in range(9) if f"verifier:{n}" not in pool.near
    }


def test_workers_of_the_settings_are_connected_beside_the_subset():
    outside = next(iter(told(4).beyond.values()))
    pool = told(4, fixed=(outside,))
    assert outside in pool.near
    assert len(pool.near) == 5
    assert outside not in pool.beyond.values()


def test_workers_of_another_protocol_are_left_alone_and_told_of_once(caplog):
    every = [
        RegisteredWorker(
            WorkerDescription(f"w{own}", Role.VERIFIER, protocol_min=own, protocol_max=own),
            f"h:{own}",
        )
        for own in (1, 2, 3)
    ]
    speakers = Speakers()
    for _ in range(3):
        assert list(speakers.among(every)) == [every[1]]
    before, after = sorted(caplog.messages)
    assert "verifier w1 at h:1" in before
    assert "it speaks 1 to 1, and this one 2" in before
    assert "it speaks 3 to 3, and this one 2" in after
