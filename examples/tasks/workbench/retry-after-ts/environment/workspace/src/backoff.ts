export interface BackoffOptions {
  readonly baseMs?: number;
  readonly factor?: number;
  readonly maxMs?: number;
  /** Numbers in [0, 1), called exactly once for each delay. */
  readonly rng?: () => number;
}

/** Exponential backoff with equal jitter: half of each delay is fixed, half is random. */
export class Backoff {
  readonly #baseMs: number;
  readonly #factor: number;
  readonly #maxMs: number;
  readonly #rng: () => number;

  constructor({ baseMs = 1_000, factor = 2, maxMs = 60_000, rng = Math.random }: BackoffOptions = {}) {
    this.#baseMs = baseMs;
    this.#factor = factor;
    this.#maxMs = maxMs;
    this.#rng = rng;
  }

  /** Milliseconds to wait after the `attempt`-th failed attempt, counted from 1. */
  delayMs(attempt: number): number {
    const full = Math.min(this.#maxMs, this.#baseMs * this.#factor ** (attempt - 1));
    return full / 2 + (this.#rng() * full) / 2;
  }
}
