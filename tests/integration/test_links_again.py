"""A link that was given up is made anew, as often as it takes."""

from orchestrator.workers.link import LinkLimits, WorkerLink
from services.contract.types import Role
from tests.integration.cluster import start_drafter
from tests.waiting import until


async def test_a_link_that_was_cut_off_is_made_again_while_its_worker_is_well():
    drafter = await start_drafter(seed=3)
    ups: list[WorkerLink] = []
    downs: list[str] = []

    async def on_up(link: WorkerLink) -> None:
        ups.append(link)

    link = WorkerLink(
        drafter.address,
        Role.DRAFTER,
        "orchestrator",
        on_up=on_up,
        on_event=lambda _link, _event: None,
        on_down=lambda _link, reason: downs.append(reason),
        limits=LinkLimits(),
    )
    link.start()
    for cut in range(3):
        await until(lambda cut=cut: len(ups) > cut and link.up)
        link.cut("it was told to")
        await until(lambda cut=cut: len(downs) > cut)
    await until(lambda: len(ups) == 4)
    assert downs == ["it was told to"] * 3
    await link.close()
    await drafter.kill()
