// What a call to Paceline can fail with: a gRPC status, and the details that came with it.

import { fileURLToPath } from 'node:url';

import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';

const messages = protoLoader.loadSync(fileURLToPath(new URL('errors.proto', import.meta.url)), {
  longs: Number,
});

/** A failed call. */
export class PacelineError extends Error {
  /**
   * @param {string} message
   * @param {object} details
   * @param {string} details.code         name of the gRPC status, e.g. 'UNAVAILABLE'
   * @param {string} [details.reason]     the server's name for the cause
   * @param {number} [details.retryAfterMs]  wait so long before another try
   * @param {{field: string, description: string}[]} [details.violations]  fields that are wrong
   */
  constructor(message, { code, reason = '', retryAfterMs, violations = [], cause }) {
    super(message, { cause });
    this.name = 'PacelineError';
    this.code = code;
    this.reason = reason;
    this.retryAfterMs = retryAfterMs;
    this.violations = violations;
  }
}

/** The PacelineError for what grpc-js threw; anything else comes back as it is. */
export function typed(error) {
  if (typeof error?.code !== 'number' || grpc.status[error.code] === undefined) return error;
  const details = detailsOf(error);
  return new PacelineError(error.details || error.message, {
    code: grpc.status[error.code],
    reason: details.ErrorInfo?.reason,
    retryAfterMs: milliseconds(details.RetryInfo?.retryDelay),
    violations: details.BadRequest?.fieldViolations,
    cause: error,
  });
}

/** The error of a stream that ended without its end. */
export function cutShort() {
  return new PacelineError('the stream was cut short', { code: 'UNAVAILABLE' });
}

/** The details of a status by the name of their message. */
function detailsOf(error) {
  const found = {};
  const [trailer] = error.metadata?.get('grpc-status-details-bin') ?? [];
  if (trailer === undefined) return found;
  try {
    for (const any of decode('Status', trailer).details ?? []) {
      const name = any.type_url.split('.').pop();
      if (messages[`google.rpc.${name}`]) found[name] = decode(name, any.value);
    }
  } catch {
    // Proxies may cut or rewrite trailers; the code and the message still count.
  }
  return found;
}

function decode(name, bytes) {
  return messages[`google.rpc.${name}`].deserialize(bytes);
}

function milliseconds(duration) {
  if (!duration) return undefined;
  return (duration.seconds ?? 0) * 1000 + (duration.nanos ?? 0) / 1e6;
}
