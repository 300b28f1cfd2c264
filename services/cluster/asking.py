"""One generation asked of a cluster, and its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline import Client, Event, PacelineError

from services.cluster.figures import Measured, Stopwatch


async def question(
    client: Client,
    prompt: str,
    *,
    raw: bool = False,
    system: str = "",
    talk: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The prompt as the model wants it: a conversation if it has a chat template.

    `talk`: what the template is given beside the messages; it takes a conversation.
    """
    if raw or not (talk or (await client.model_info()).has_chat_template):
        return {"prompt": prompt}
    turns = [{"role": "user", "content": prompt}]
    messages = [{"role": "system", "content": system}, *turns] if system else turns
    return {"messages": messages, **(talk or {})}


async def follow(
    client: Client, asked: Mapping[str, Any], on_event: Callable[[Event], None]
) -> Measured:
    """Run one generation; its figures. Raises the client's errors."""
    watch = Stopwatch()
    measured = None
    async for event in client.generate(**asked):
        measured = watch.see(event)
        on_event(event)
    if measured is None:
        raise PacelineError("the stream ended before the generation did")
    return measured
