"""How much of each session's work goes into one step."""

from services.scheduling.step_time import StepTimeModel
from services.verifier.scheduling import PrefillPace, share_prefill


def test_half_of_the_room_is_for_who_came_first_and_half_for_who_has_least_left():
    assert share_prefill([100, 100], 60) == [60, 0]
    assert share_prefill([1000, 10, 40], 120) == [70, 10, 40]
    assert share_prefill([1000, 500, 40, 30], 100) == [50, 0, 20, 30]
    assert share_prefill([30, 1000, 10], 400) == [30, 360, 10]
    assert share_prefill([5], 100) == [5]
    assert share_prefill([], 100) == []
    assert sum(share_prefill([9] * 7, 20)) == 20
    # With less room than prompts the first ones come first.
    assert share_prefill([9] * 5, 3) == [3, 0, 0, 0, 0]
    assert share_prefill([100, 1, 100], 2) == [1, 1, 0]


def test_the_prefill_pace_follows_what_the_machine_does():
    pace = PrefillPace(target_ms=100, most=512)
    for _ in range(40):
        pace.observe(64, 64, step_ms=640, alone=StepTimeModel())
    assert pace.room(0) == 16  # never none, however slow
    for _ in range(40):
        pace.observe(64, 64, step_ms=64, alone=StepTimeModel())
    assert 98 <= pace.room(0) <= 102
    assert 78 <= pace.room(20) <= 82
    for _ in range(40):
        pace.observe(64, 64, step_ms=0.1, alone=StepTimeModel())
    assert pace.room(0) == 512
    assert pace.room(512) == 16


def test_beside_decoding_prompts_make_a_step_longer_by_no_more_than_allowed():
    line = StepTimeModel()
    for rows in (1, 9, 33, 65) * 20:
        line = line.add(rows, 0.030 + 0.002 * rows)
    pace = PrefillPace(target_ms=10_000, most=512, slowdown=1.5)
    # A step of ten rows takes 50 ms; what a prompt's row takes is not known yet.
    assert 11 <= pace.room(10, line) <= 13
    # It is half of what a row of another session takes: 25 ms are 25 rows.
    for _ in range(40):
        pace.observe(74, 64, step_ms=50 + 64, alone=line)
    assert 23 <= pace.room(10, line) <= 27
    assert pace.room(10) == 502
    assert pace.room(510, line) == 8  # never none, however little is left
    # Three times as many wait for their prompts as decode.
    assert 70 <= pace.room(10, line, crowd=3.0) <= 80
    assert pace.room(10, line, crowd=0.2) == pace.room(10, line)
    assert PrefillPace(10_000, 512, 1.5).room(10, StepTimeModel()) == 54  # nothing is known
