"""What scalers make of a recording.

Open loop: the recording knows a fixed number of processes, and replicas that a scaler
would have added take no load off it. So a replay shows what is asked for by a load that
meets what was recorded, and how fast; not how the load would have eased.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from research.scaling.manifests import ScaledObject, Trigger
from research.scaling.recording import Recording
from research.scaling.scaler import Scaled, tick
from services.contract.errors import StartError


@dataclass(frozen=True, slots=True)
class Moment:
    """A tier when its scaler had looked; `held`: after the recording's end, its last values."""

    at: float
    sessions: float | None
    values: Mapping[str, float | None]
    wanted: int
    replicas: int
    held: bool = False


def replay(recording: Recording, scaler: ScaledObject, after_s: float) -> list[Moment]:
    """From the fewest replicas on, until `after_s` beyond the recording's end."""
    _require(recording, scaler)
    end = recording.times[-1]
    scaled = Scaled(scaler.least)
    moments = []
    for at in _looks(scaler, end + after_s):
        values = recording.values(scaler.tier, at)
        scaled = tick(scaler, scaled, at, values)
        moments.append(
            Moment(at, recording.sessions_at(at), values, scaled.wanted, scaled.replicas, at > end)
        )
    return moments


def _looks(scaler: ScaledObject, end: float) -> Iterator[float]:
    for look in range(int(end / scaler.polling_s) + 1):
        yield look * scaler.polling_s


def _require(recording: Recording, scaler: ScaledObject) -> None:
    """Raises StartError for a recording of other expressions."""
    recorded = recording.signals.get(scaler.tier, {})
    for trigger in scaler.triggers:
        signal = recorded.get(trigger.name)
        if signal is None or signal.query != trigger.query:
            raise StartError(
                f"the recording has no {trigger.name} of the {scaler.tier} as the manifests ask "
                "for it: record anew"
            )


def table(scaler: ScaledObject, moments: Sequence[Moment], every_s: float) -> str:
    """A line every so often, one for every change of the replicas, and the last.

    Of what is held after the end only changes are shown.
    """
    names = [trigger.name for trigger in scaler.triggers]
    lines = [
        f"{scaler.tier}: {scaler.least} to {scaler.most} replicas; "
        + ", ".join(map(_target, scaler.triggers)),
        f"{'time':>6}  {'sessions':>8}  "
        + "  ".join(f"{name:>9}" for name in names)
        + f"  {'wanted':>6}  {'replicas':>8}",
    ]
    replicas = None
    for moment in moments:
        due = moment.at % every_s == 0 and not moment.held
        if due or moment.replicas != replicas or moment is moments[-1]:
            lines.append(_line(moment, names))
        replicas = moment.replicas
    return "\n".join(lines)


def _target(trigger: Trigger) -> str:
    return f"{trigger.name} {trigger.threshold:g} a replica"


def _line(moment: Moment, names: Sequence[str]) -> str:
    minutes, seconds = divmod(round(moment.at), 60)
    cells = "  ".join(f"{_number(moment.values[name]):>9}" for name in names)
    mark = " held" if moment.held else ""
    return (
        f"{minutes:>3}:{seconds:02}  {_number(moment.sessions):>8}  {cells}  "
        f"{moment.wanted:>6}  {moment.replicas:>8}{mark}"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"
