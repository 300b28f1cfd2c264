#!/usr/bin/env node
// One prompt, its text as it is committed, and a line of figures on stderr.

import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';

import { Client, PacelineError } from './paceline.js';

const FLAGS = {
  allowPositionals: true,
  options: {
    address: { type: 'string', multiple: true, default: ['127.0.0.1:50051'] },
    'max-tokens': { type: 'string' },
    temperature: { type: 'string' },
    seed: { type: 'string' },
    'ignore-eos': { type: 'boolean' },
    'server-name': { type: 'string' },
    insecure: { type: 'boolean' },
    'no-resume': { type: 'boolean' },
  },
};

function commandLine() {
  try {
    return parseArgs(FLAGS);
  } catch (error) {
    console.error(error.message.split('\n', 1)[0]);
    process.exit(2);
  }
}

const { values, positionals } = commandLine();

const { PACELINE_TOKEN: token, PACELINE_CA, PACELINE_CERT, PACELINE_KEY } = process.env;
const pem = (path) => (path ? readFileSync(path) : undefined);

const client = new Client(values.address, {
  token,
  ca: pem(PACELINE_CA),
  cert: pem(PACELINE_CERT),
  key: pem(PACELINE_KEY),
  serverName: values['server-name'],
  insecure: values.insecure,
  patienceMs: values['no-resume'] ? 0 : undefined,
});

const onBreak = (error, offset) =>
  console.error(`${error.code}: ${error.message}; going on after token ${offset}`);
const request = {
  prompt: positionals.join(' '),
  sampling: {
    maxTokens: values['max-tokens'],
    temperature: values.temperature,
    seed: values.seed,
    ignoreEos: values['ignore-eos'],
  },
};
try {
  for await (const { started, chunk, complete } of client.generate(request, { onBreak })) {
    if (started) console.error(`session ${started.sessionId} · seed ${started.seed}`);
    if (chunk) process.stdout.write(chunk.text);
    if (complete) {
      const { blockEfficiency = 1, draftAcceptanceRate = 0 } = complete.speculation ?? {};
      console.error(
        `\n${complete.usage.completionTokens} tokens · ${complete.finishReason}` +
          ` · block efficiency ${blockEfficiency.toFixed(2)}` +
          ` · ${(100 * draftAcceptanceRate).toFixed(0)} % of the drafts kept`,
      );
    }
  }
} catch (error) {
  if (!(error instanceof PacelineError)) throw error;
  console.error(`${error.code}: ${error.message}`);
  for (const { field, description } of error.violations) {
    console.error(`  ${field}: ${description}`);
  }
  if (error.retryAfterMs !== undefined) console.error(`  try again in ${error.retryAfterMs} ms`);
  process.exitCode = 1;
} finally {
  client.close();
}
