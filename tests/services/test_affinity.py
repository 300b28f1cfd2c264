"""Who goes first on a machine: what serves, before what compiles."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.contract.types import FormatKind, ResponseFormat
from services.grammar.vetting import Vetting
from services.grammar.vetting_child import NICENESS

LAST = 19
AUTOGROUP = Path("/proc/self/autogroup")


def said(program):
    """What a process of its own, in a session of its own, says."""
    program = "from services.runtime.affinity import give_way\nimport os\n" + program
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
    ).stdout.split()


def test_who_gives_way_stands_behind_by_so_many_steps():
    own = os.getpriority(os.PRIO_PROCESS, 0)
    [niceness] = said("give_way(7)\nprint(os.getpriority(os.PRIO_PROCESS, 0))")
    assert int(niceness) == min(LAST, own + 7)


@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel shares out by process alone")
def test_where_sessions_share_the_cores_the_session_gives_way():
    told = said("give_way(7)\nprint(open('/proc/self/autogroup').read())")
    assert told[-1] == "7"


def test_who_may_not_go_first_goes_on_as_before():
    program = "os.setuid(65534) if not os.getuid() else None\n"
    [before, after] = said(
        f"{program}print(os.getpriority(os.PRIO_PROCESS, 0))\n"
        "give_way(-1)\nprint(os.getpriority(os.PRIO_PROCESS, 0))"
    )
    assert before == after


def test_a_process_that_compiles_stands_behind_the_one_that_serves():
    vetting = Vetting(processes=1)
    try:
        answer = vetting.submit(ResponseFormat(FormatKind.REGEX, ("a+",)))
        assert not answer.result(60).complaint
        [pid] = vetting.pids
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(LAST, ours + NICENESS)
        if AUTOGROUP.exists():
            assert Path(f"/proc/{pid}/autogroup").read_text().split()[-1] == str(NICENESS)
    finally:
        vetting.close()
