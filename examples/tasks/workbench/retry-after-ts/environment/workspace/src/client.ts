import { Backoff } from "./backoff.ts";
import { type Clock, SystemClock } from "./clock.ts";
import { RetriesExhausted } from "./errors.ts";
import type { Request, Response, Transport } from "./transport.ts";

const RETRIED: ReadonlySet<number> = new Set([429, 502, 503, 504]);

export interface ClientOptions {
  readonly clock?: Clock;
  readonly backoff?: Backoff;
  readonly maxAttempts?: number;
}

/** Sends requests over a transport; answers with a status in `RETRIED` are tried again. */
export class Client {
  readonly #transport: Transport;
  readonly #clock: Clock;
  readonly #backoff: Backoff;
  readonly #maxAttempts: number;

  constructor(transport: Transport, options: ClientOptions = {}) {
    this.#transport = transport;
    this.#clock = options.clock ?? new SystemClock();
    this.#backoff = options.backoff ?? new Backoff();
    this.#maxAttempts = options.maxAttempts ?? 5;
    if (this.#maxAttempts < 1) throw new RangeError("maxAttempts must be at least 1");
  }

  /**
   * The first answer that is not to be tried again.
   *
   * Rejects with {@link RetriesExhausted} and the last answer when `maxAttempts` attempts did not bring one.
   */
  async send(request: Request): Promise<Response> {
    for (let attempt = 1; ; attempt++) {
      const response = await this.#transport.send(request);
      if (!RETRIED.has(response.status)) return response;
      if (attempt === this.#maxAttempts) throw new RetriesExhausted(response, attempt);
      await this.#clock.sleep(this.#backoff.delayMs(attempt));
    }
  }
}
