"""The public evaluation harness lm-eval (EleutherAI) on a served model.

python lm_eval_model.py --address 127.0.0.1:50051 --tasks facts

Needs the package `lm-eval`. Loglikelihoods come from the rpc Score, texts from Generate. The task
`facts` lies beside this file; others are lm-eval's own.
"""

import argparse
import asyncio
import json
import os
from pathlib import Path

import lm_eval
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from paceline import Client

TASKS = Path(__file__).with_name("lm_eval_task")


class Paceline(LM):
    """The model that an orchestrator serves; its verifiers tokenize, compute and batch."""

    def __init__(self, address: str, first_token: int | None = None, at_once: int = 8) -> None:
        """`first_token` stands before a text without context: a BOS; None: the model's EOS."""
        super().__init__()
        self._address, self._first_token, self._at_once = address, first_token, at_once

    def loglikelihood(self, requests):
        """Sums of log-probabilities, and whether a continuation is the greedy one."""
        # All continuations of a context in one call: they share its prefill.
        by_context = {}
        for request in requests:
            context, continuation = request.args
            by_context.setdefault(context, {})[continuation] = None
        found = self._map(self._score, [(one, list(more)) for one, more in by_context.items()])
        answers = {key: answer for answers in found for key, answer in answers.items()}
        return [answers[request.args] for request in requests]

    async def _score(self, client, context, continuations):
        given = {"context": context} if context else {"tokens": [await self._first(client)]}
        answers = {}
        for first in range(0, len(continuations), 128):
            part = continuations[first : first + 128]
            scored = await client.score(**given, continuations=part)
            for continuation, score in zip(part, scored.scores, strict=True):
                answers[context, continuation] = (score.logprob, score.is_greedy)
        return answers

    async def _first(self, client):
        given = self._first_token
        return (await client.model_info()).eos_token_ids[0] if given is None else given

    def loglikelihood_rolling(self, requests):
        """Of whole texts, which have to fit the model's context."""
        alone = [type(request)("loglikelihood", {}, ("", *request.args), 0) for request in requests]
        return [logprob for logprob, _ in self.loglikelihood(alone)]

    def generate_until(self, requests):
        """Texts up to a stop string."""
        return self._map(self._generate, [request.args for request in requests])

    async def _generate(self, client, context, options):
        stops = options.get("until") or []
        done = await client.generate(
            context,
            stop=[stops] if isinstance(stops, str) else stops,
            max_tokens=options.get("max_gen_toks", 256),
            temperature=options.get("temperature", 0.0) if options.get("do_sample") else 0.0,
        )
        return done.text

    def _map(self, act, arguments):
        return asyncio.run(self._all(act, arguments))

    async def _all(self, act, arguments):
        turns = asyncio.Semaphore(self._at_once)

        async def one(client, given):
            async with turns:
                return await act(client, *given)

        async with Client(self._address) as client:
            return await asyncio.gather(*(one(client, given) for given in arguments))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", required=True)
    parser.add_argument("--tasks", nargs="+", default=["facts"])
    parser.add_argument("--num-fewshot", type=int)
    parser.add_argument("--first-token", type=int, help="before texts without context; else EOS")
    asked = parser.parse_args()
    os.chdir(TASKS.parent)  # The task names its file from here.
    results = lm_eval.simple_evaluate(
        Paceline(asked.address, asked.first_token),
        tasks=asked.tasks,
        num_fewshot=asked.num_fewshot,
        task_manager=TaskManager(include_path=str(TASKS)),
    )
    print(json.dumps(results["results"], indent=2, default=str))


if __name__ == "__main__":
    main()
