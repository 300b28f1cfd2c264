"""What the kit of hostile requests says, and when it finds harm."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from testkit.chaos import __main__ as chaos
from testkit.hostile import __main__ as hostile
from testkit.hostile.run import Bounds, Hostile, HostilePlan


@pytest.mark.parametrize("program", [chaos, hostile])
def test_each_program_says_its_own_name(program, capsys):
    program.say("it serves")
    assert capsys.readouterr().err == f"{program.__package__}: it serves\n"


async def test_a_session_that_stands_still_is_harm():
    run = Hostile(SimpleNamespace(), [], HostilePlan(), Bounds(pace_lost=1.0, gap=0.5), "token")
    heard = SimpleNamespace(heard_at=time.monotonic() - 0.4)
    run._listeners = [SimpleNamespace(running=True, transcript=heard)]
    looking = asyncio.create_task(run._look_for_gaps())
    await asyncio.sleep(0)
    run._judge(SimpleNamespace(restarted=list))
    assert run._outcome.violations == []
    heard.heard_at -= 5.0
    await asyncio.sleep(0.2)
    looking.cancel()
    run._judge(SimpleNamespace(restarted=list))
    assert [line for line in run._outcome.violations if "stood still for 5." in line]
