import { Backoff } from "./backoff.ts";
import { type Clock, SystemClock } from "./clock.ts";
import { RetriesExhausted } from "./errors.ts";
import { retryAfterMs } from "./retry_after.ts";
import type { Request, Response, Transport } from "./transport.ts";

const RETRIED: ReadonlySet<number> = new Set([429, 502, 503, 504]);

export interface ClientOptions {
  readonly clock?: Clock;
  readonly backoff?: Backoff;
  readonly maxAttempts?: number;
  /** The longest wait on a server's word. */
  readonly maxWaitMs?: number;
}

/**
 * Sends requests over a transport; answers with a status in `RETRIED` are tried again.
 *
 * A 429 with `Retry-After` pauses its host for every call of this client, for `maxWaitMs` at most.
 */
export class Client {
  readonly #transport: Transport;
  readonly #clock: Clock;
  readonly #backoff: Backoff;
  readonly #maxAttempts: number;
  readonly #maxWaitMs: number;
  readonly #pausedUntil = new Map<string, number>();

  constructor(transport: Transport, options: ClientOptions = {}) {
    this.#transport = transport;
    this.#clock = options.clock ?? new SystemClock();
    this.#backoff = options.backoff ?? new Backoff();
    this.#maxAttempts = options.maxAttempts ?? 5;
    this.#maxWaitMs = options.maxWaitMs ?? 120_000;
    if (this.#maxAttempts < 1) throw new RangeError("maxAttempts must be at least 1");
  }

  /**
   * The first answer that is not to be tried again.
   *
   * Rejects with {@link RetriesExhausted} and the last answer when `maxAttempts` attempts did not bring one.
   */
  async send(request: Request): Promise<Response> {
    const host = new URL(request.url).hostname;
    for (let attempt = 1; ; attempt++) {
      await this.#pauseOver(host);
      const response = await this.#transport.send(request);
      if (!RETRIED.has(response.status)) return response;
      const askedMs = this.#notePause(host, response);
      if (attempt === this.#maxAttempts) throw new RetriesExhausted(response, attempt);
      await this.#clock.sleep(Math.max(askedMs, this.#backoff.delayMs(attempt)));
    }
  }

  /** The wait this answer asks for, capped (0: none); remembered for the host, never shortening a longer pause. */
  #notePause(host: string, response: Response): number {
    const now = this.#clock.now();
    const saidMs = response.status === 429 ? retryAfterMs(response, now) : undefined;
    if (saidMs === undefined) return 0;
    const askedMs = Math.min(saidMs, this.#maxWaitMs);
    this.#pausedUntil.set(host, Math.max(now + askedMs, this.#pausedUntil.get(host) ?? 0));
    return askedMs;
  }

  /** Resolves when nobody has asked to leave `host` alone any longer; a pause may grow while we wait. */
  async #pauseOver(host: string): Promise<void> {
    for (;;) {
      const until = this.#pausedUntil.get(host);
      if (until === undefined || until <= this.#clock.now()) return;
      await this.#clock.sleep(until - this.#clock.now());
    }
  }
}
