"""The hostile tenant, a process of its own: as many calls at once as it is let have.

    python -m testkit.hostile.sender TOKEN LANES SECONDS ADDRESS…

Every lane sends one attack after another, without a pause and whatever the answer, and breaks
off the last one when the time is over. It goes behind everybody else: what it spends is another
machine's. At the end it prints, as JSON, how many calls of each kind ended with which status.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter, defaultdict
from typing import Any

import grpc

from services.runtime.affinity import give_way
from testkit.hostile.attacks import ATTACKS, Attack, Manner

_UNREAD_SECONDS = 3.0
_CROWD = 400
_LONGEST_CALL = 30.0
_UNARY = ("GetSession", "Score")
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]

Ends = dict[str, Counter[str]]


async def send(
    token: str, lanes: int, seconds: float, kinds: list[str], addresses: list[str]
) -> Ends:
    """Attack for so long, in these ways; how the calls of each kind ended."""
    ends: Ends = defaultdict(Counter)
    until = time.monotonic() + seconds
    lane = [
        _lane(addresses[number % len(addresses)], token, number, until, kinds, ends)
        for number in range(lanes)
    ]
    await asyncio.gather(*lane)
    return ends


async def _lane(
    address: str, token: str, number: int, until: float, kinds: list[str], ends: Ends
) -> None:
    order, count = random.Random(number), 0
    channel: Any = grpc.aio.insecure_channel(address, options=_OPTIONS)
    async with channel:
        while time.monotonic() < until:
            kind = order.choice(kinds)
            attack = ATTACKS[kind](1_000_000 * number + count)
            calls = (_call(channel, token, attack, until) for _ in range(attack.at_once))
            ends[kind].update(await asyncio.gather(*calls))
            count += 1


async def _call(channel: Any, token: str, attack: Attack, until: float) -> str:
    """The status that the call ended with."""
    metadata = (("authorization", f"Bearer {token}"),)
    try:
        async with asyncio.timeout(min(_LONGEST_CALL, until - time.monotonic())):
            if attack.manner is Manner.WITHHOLD:
                await _withhold(channel, attack, metadata)
            elif attack.manner is Manner.CROWD:
                await _crowd(channel, attack)
            elif attack.method in _UNARY:
                await channel.unary_unary(attack.path)(attack.message, metadata=metadata)
            else:
                await _stream(channel, attack, metadata)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    except TimeoutError:
        return "no end in time"
    return "OK" if attack.manner is Manner.READ else "left"


async def _withhold(channel: Any, attack: Attack, metadata: Any) -> None:
    call = channel.stream_stream(attack.path)(metadata=metadata)
    try:
        await call.wait_for_connection()
        await asyncio.sleep(_UNREAD_SECONDS)
    finally:
        call.cancel()


async def _crowd(channel: Any, attack: Attack) -> None:
    """Without a token."""
    calls = [channel.unary_stream(attack.path)(attack.message) for _ in range(_CROWD)]
    try:
        await asyncio.sleep(_UNREAD_SECONDS)
    finally:
        for call in calls:
            call.cancel()


async def _stream(channel: Any, attack: Attack, metadata: Any) -> None:
    call = channel.unary_stream(attack.path)(attack.message, metadata=metadata)
    try:
        if attack.manner is Manner.IGNORE:
            await asyncio.sleep(_UNREAD_SECONDS)
            return
        async for _ in call:
            if attack.manner is Manner.LEAVE:
                return
    finally:
        call.cancel()


def main() -> int:
    """Attack, and say what came of it."""
    token, lanes, seconds, kinds, *addresses = sys.argv[1:]
    os.setsid()
    give_way(19)
    sending = send(token, int(lanes), float(seconds), kinds.split(","), addresses)
    print(json.dumps(asyncio.run(sending)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
