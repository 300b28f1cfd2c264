// A client of Paceline: it streams a generation, and goes on by itself when a connection breaks.
//
//   const client = new Client('127.0.0.1:50051');
//   for await (const { chunk } of client.generate({ prompt: 'Once upon a time' })) {
//     if (chunk) process.stdout.write(chunk.text);
//   }
//
// Requests and events are the messages of protos/paceline/v1/inference.proto, with names in
// camelCase, 64-bit numbers and enums as strings.

import { randomBytes, randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';

import { PacelineError, cutShort, typed } from './errors.js';

export { PacelineError };

/** The hash of no tokens at all; `extendHash` goes on from there. */
export const EMPTY_HASH = 0xcbf29ce484222325n;
const HASH_PRIME = 0x100000001b3n;

/** The hash of a text that goes on with these tokens: FNV-1a over token ids plus one (docs/wire.md). */
export function extendHash(hash, tokenIds) {
  for (const token of tokenIds) {
    hash = BigInt.asUintN(64, (hash ^ BigInt(token + 1)) * HASH_PRIME);
  }
  return hash;
}

const PROTOS = fileURLToPath(new URL('../../protos', import.meta.url));
const QUESTION_MS = 30_000;
const FIRST_WAIT_MS = 100;
const LONGEST_WAIT_MS = 2_000;

const CHANNEL = {
  'grpc.max_receive_message_length': 32 << 20,
  // A server that stands still is noticed after ten seconds. It allows one ping in five.
  'grpc.keepalive_time_ms': 6_000,
  'grpc.keepalive_timeout_ms': 4_000,
  'grpc.initial_reconnect_backoff_ms': FIRST_WAIT_MS,
  'grpc.max_reconnect_backoff_ms': LONGEST_WAIT_MS,
};

/** A connection to one cluster of Paceline, made when it is first used. */
export class Client {
  #servers;
  #current = 0;
  #token;
  #patienceMs;

  /**
   * @param {string | string[]} address  host:port of an orchestrator, or of several
   * @param {object} [options]
   * @param {string} [options.token]       goes with every call
   * @param {Buffer} [options.ca]          PEM of the authority to trust: TLS
   * @param {Buffer} [options.cert]        PEM of the client's own certificate, with `key`
   * @param {Buffer} [options.key]
   * @param {string} [options.serverName]  name in the server's certificate, if not the address's
   * @param {boolean} [options.insecure]   allow plaintext beyond loopback
   * @param {number} [options.patienceMs]  a generation is given up when no token came for so long
   *                                       after a break; 0: every break is thrown
   * @param {string} [options.protos]      the folder with paceline/v1/inference.proto
   */
  constructor(address, options = {}) {
    const { token, patienceMs = 60_000, protos = PROTOS } = options;
    const { InferenceService } = load(protos);
    const secure = Boolean(options.ca || options.cert);
    const credentials = credentialsOf(options);
    const name = options.serverName;
    const channel = name
      ? { ...CHANNEL, 'grpc.ssl_target_name_override': name, 'grpc.default_authority': name }
      : CHANNEL;
    this.#servers = [address].flat().map((at) => {
      if (!secure && !options.insecure && !isLocal(at)) {
        throw new TypeError(`${at} is not loopback: give ca for TLS, or insecure`);
      }
      return new InferenceService(at, credentials, channel);
    });
    this.#token = token;
    this.#patienceMs = patienceMs;
  }

  /**
   * Generate. Yields one `{started}`, then `{chunk}`s, then one `{complete}`, whatever breaks.
   *
   * A caller that leaves the loop early ends the session on the server.
   *
   * @param {object} request  a GenerateRequest; without `requestId` it gets one
   * @param {object} [options]
   * @param {number} [options.timeoutMs]  for all attempts together
   * @param {(error: PacelineError, offset: number) => void} [options.onBreak]  told of every
   *        break that is borne, and how many tokens had come by then
   */
  generate(request, options = {}) {
    const whole = { ...request, requestId: request.requestId ?? randomUUID() };
    return this.#follow(new Attempts({ request: whole, sessionId: whole.requestId }), options);
  }

  /**
   * Go on with a session after its first `offset` tokens; the same options and events.
   *
   * @param {bigint} [options.prefixHash]  `extendHash` of those tokens: a server whose text begins
   *        otherwise throws DATA_LOSS. Left out: nobody compares
   */
  resume(sessionId, offset = 0, options = {}) {
    return this.#follow(new Attempts({ sessionId, offset, hash: options.prefixHash }), options);
  }

  /** End a session at once. */
  async abort(sessionId) {
    await this.#ask('abort', { sessionId });
  }

  /** What the server knows of a session. */
  getSession(sessionId, more = {}) {
    return this.#ask('getSession', { sessionId, ...more });
  }

  /** The model that is served. */
  modelInfo() {
    return this.#ask('getModelInfo', {});
  }

  /** The server and its workers. */
  serverInfo() {
    return this.#ask('getServerInfo', {});
  }

  /** End the connections. */
  close() {
    for (const server of this.#servers) server.close();
  }

  async *#follow(attempts, { timeoutMs = Infinity, onBreak = () => {} }) {
    const patience = new Patience(this.#patienceMs, Date.now() + timeoutMs);
    let callerLeft = true;
    try {
      while (!attempts.ended) {
        const server = this.#servers[this.#current];
        const broken = yield* attempts.once(server, this.#metadata(), patience);
        if (attempts.ended) break;
        if (!attempts.goesOn(broken)) throw broken;
        this.#failed(server);
        await patience.wait(server, this.#servers[this.#current], broken);
        onBreak(broken, attempts.offset);
      }
      callerLeft = false;
    } catch (error) {
      callerLeft = false;
      throw error;
    } finally {
      if (callerLeft && !attempts.ended) await this.abort(attempts.sessionId).catch(() => {});
    }
  }

  async #ask(method, request) {
    const ends = Date.now() + QUESTION_MS;
    for (let left = this.#servers.length; ; left--) {
      const server = this.#servers[this.#current];
      try {
        return await unary(server, method, request, this.#metadata(), {
          deadline: Date.now() + (ends - Date.now()) / left,
        });
      } catch (error) {
        const another = ['UNAVAILABLE', 'DEADLINE_EXCEEDED'].includes(error.code);
        if (!another || left === 1) throw error;
        this.#failed(server);
      }
    }
  }

  /** If nobody has moved on yet, calls go to the next server. */
  #failed(server) {
    if (this.#servers[this.#current] === server) {
      this.#current = (this.#current + 1) % this.#servers.length;
    }
  }

  #metadata() {
    const metadata = new grpc.Metadata();
    if (this.#token !== undefined) metadata.set('authorization', `Bearer ${this.#token}`);
    return metadata;
  }
}

/** One generation over as many calls as it takes, and what of it the caller has. */
class Attempts {
  ended = false;
  #request;
  #began;
  #started;
  #resuming;
  #answered = false;
  #calls = 0;
  // By this a server tells a call that it carries out late from one that came after it.
  #reader = randomBytes(8).toString('hex');

  // Of the tokens so far; undefined where the caller did not tell of those it began with.
  #hash;

  constructor({ request, sessionId, offset = 0, hash = offset ? undefined : EMPTY_HASH }) {
    this.sessionId = sessionId;
    this.offset = this.#began = offset;
    this.#hash = hash;
    this.#request = request;
    this.#resuming = request === undefined;
  }

  /** One call: yields what of it is new to the caller; returns what ended it early. */
  async *once(server, metadata, patience) {
    this.#calls += 1;
    this.#answered = false;
    metadata.set('paceline-call', `${this.#reader}/${this.#calls}`);
    const options = { deadline: patience.ends };
    // The same Generate again is harmless: its request id attaches it to the session there is.
    const call = this.#resuming
      ? server.resume(this.#rest(), metadata, options)
      : server.generate(this.#request, metadata, options);
    call.on('error', () => {}); // What a cancelled call says when nobody reads it any more.
    try {
      for await (const message of call) {
        const event = this.#take(message);
        if (event?.chunk) patience.progress();
        if (event) yield event;
      }
    } catch (error) {
      if (error instanceof PacelineError) throw error;
      return typed(error);
    } finally {
      call.cancel();
    }
    return cutShort();
  }

  #rest() {
    const { sessionId, offset } = this;
    // The hash keeps a server from going on with the end of another text.
    return { sessionId, offset, prefixHash: this.#hash?.toString() };
  }

  /** Whether another call may go on after this error. */
  goesOn(error) {
    switch (error.code) {
      case 'UNAVAILABLE':
        return true;
      case 'RESOURCE_EXHAUSTED': // A first call is refused, and there is no session yet.
        return error.retryAfterMs !== undefined && (this.#resuming || this.#calls > 1);
      case 'NOT_FOUND': // The session was lost with its server, before any token came.
        return this.#startOver();
      case 'INTERNAL':
      case 'UNKNOWN':
      case 'CANCELLED': // So a broken transport reads, which gives no reason.
        return error.reason === '';
      default:
        return false;
    }
  }

  #startOver() {
    const nothingCame = this.#resuming && !this.#answered && this.offset === this.#began;
    if (!nothingCame || !this.#request) return false;
    const { seed } = this.#started;
    this.#request = { ...this.#request, sampling: { ...this.#request.sampling, seed } };
    this.#resuming = false;
    return true;
  }

  #take({ started, chunk, complete }) {
    if (started) {
      const known = this.#started;
      this.#started ??= started;
      this.#answered = this.#resuming = true;
      return known ? undefined : { started };
    }
    if (chunk) return this.#takeChunk(chunk);
    if (!complete) return undefined;
    const count = complete.usage?.completionTokens ?? 0;
    if (this.offset < count) throw fault(`the output ended ${count - this.offset} tokens early`);
    this.ended = true;
    return { complete };
  }

  #takeChunk(chunk) {
    if (chunk.offset + chunk.tokenIds.length <= this.offset) return undefined;
    // A resumed stream begins where it was asked to; anything else would be text twice or a gap.
    if (chunk.offset !== this.offset) throw fault(`token ${chunk.offset} came, not ${this.offset}`);
    this.offset += chunk.tokenIds.length;
    if (this.#hash !== undefined) this.#hash = extendHash(this.#hash, chunk.tokenIds);
    return { chunk };
  }
}

/** How long one generation goes on trying, and how long it waits between calls. */
class Patience {
  #ms;
  #givesUp;
  #breaks = 0;
  #askedBack = new Map();

  constructor(ms, ends) {
    this.#ms = ms;
    this.ends = ends;
  }

  /** A token came. */
  progress() {
    this.#givesUp = undefined;
    this.#breaks = 0;
  }

  /** Wait until `next` may be called; throws the error when that is too long. */
  async wait(failed, next, error) {
    const now = Date.now();
    this.#givesUp ??= now + this.#ms;
    if (error.retryAfterMs !== undefined) this.#askedBack.set(failed, now + error.retryAfterMs);
    const left = Math.min(this.#givesUp, this.ends) - now;
    const asked = (this.#askedBack.get(next) ?? now) - now;
    if (left <= 0 || asked > left) throw error;
    const ceiling = Math.min(LONGEST_WAIT_MS, FIRST_WAIT_MS * 2 ** this.#breaks);
    this.#breaks += 1;
    // By chance, so that callers who were all refused at once do not all come back at once.
    const spread = Math.max(asked * (1 + Math.random() / 4), ceiling * (0.5 + Math.random() / 2));
    await sleep(Math.min(left, spread));
  }
}

function load(protos) {
  const found = protoLoader.loadSync('paceline/v1/inference.proto', {
    includeDirs: [protos],
    longs: String,
    enums: String,
    defaults: true,
    oneofs: true,
  });
  return grpc.loadPackageDefinition(found).paceline.v1;
}

function credentialsOf({ ca, cert, key }) {
  if (!cert !== !key) throw new TypeError('cert and key: one is nothing without the other');
  if (!ca && !cert) return grpc.credentials.createInsecure();
  return grpc.credentials.createSsl(ca ?? null, key ?? null, cert ?? null);
}

function isLocal(address) {
  return /^(unix:|(localhost|127(\.\d+){3}|\[::1\]):\d+$)/.test(address);
}

function unary(server, method, request, metadata, options) {
  return new Promise((resolve, reject) => {
    server[method](request, metadata, options, (error, answer) =>
      error ? reject(typed(error)) : resolve(answer),
    );
  });
}

function fault(message) {
  return new PacelineError(`the server is at fault: ${message}`, { code: 'INTERNAL' });
}
