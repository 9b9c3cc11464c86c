import { Client, type ClientOptions, Backoff } from "/workspace/src/index.ts";
import type { Clock, Request, Response, Transport } from "/workspace/src/index.ts";

/** Far from any machine's own date: Saturday, 17 October 2031, 08:00:00 GMT. */
export const NOW = 1_950_000_000_000;
export const GET: Request = { method: "GET", url: "https://api.example.com/v1/orders" };
/** What the backoff of `clientOf` makes a call wait after its first attempt. */
export const BACKOFF = 750;

interface Sleeper {
  readonly at: number;
  readonly wake: () => void;
}

/** Virtual time: it jumps to the next moment at which somebody wakes, once nobody has anything else to do. */
export class FakeClock implements Clock {
  readonly sleeps: number[] = [];
  #now = NOW;
  #sleepers: Sleeper[] = [];

  now(): number {
    return this.#now;
  }

  sleep(ms: number): Promise<void> {
    if (!(ms >= 0 && ms < Infinity)) throw new RangeError(`sleep(${ms})`);
    this.sleeps.push(ms);
    return new Promise((wake) => this.#sleepers.push({ at: this.#now + ms, wake }));
  }

  /** Runs `work` to its end, moving the time as far as needed. */
  async finish<T>(work: Promise<T>): Promise<T> {
    let done = false;
    const watched = work.finally(() => (done = true));
    watched.catch(() => undefined);
    for (let jumps = 0; !done; jumps++) {
      await settle();
      if (done) break;
      if (this.#sleepers.length === 0 || jumps > 1_000) throw new Error("nobody sleeps, and the work does not end");
      this.#jump(Math.min(...this.#sleepers.map((sleeper) => sleeper.at)));
    }
    return watched;
  }

  #jump(at: number): void {
    this.#now = Math.max(this.#now, at);
    const due = this.#sleepers.filter((sleeper) => sleeper.at <= this.#now);
    this.#sleepers = this.#sleepers.filter((sleeper) => sleeper.at > this.#now);
    for (const sleeper of due) sleeper.wake();
  }
}

/** Lets everything run that does not wait for the clock. */
async function settle(): Promise<void> {
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve));
}

export type Rule = (arrival: number, request: Request) => Response | Promise<Response>;

/** Answers by rule; records when (in ms since NOW) and where each request arrived. */
export class Server implements Transport {
  readonly arrivals: { readonly at: number; readonly url: string }[] = [];
  readonly #clock: Clock;
  readonly #rule: Rule;

  constructor(clock: Clock, rule: Rule) {
    this.#clock = clock;
    this.#rule = rule;
  }

  async send(request: Request): Promise<Response> {
    this.arrivals.push({ at: this.#clock.now() - NOW, url: request.url });
    return this.#rule(this.arrivals.length, request);
  }
}

export function answer(status: number, retryAfter?: string, name = "retry-after"): Response {
  const headers: Record<string, string> = { "content-type": "text/plain" };
  if (retryAfter !== undefined) headers[name] = retryAfter;
  return { status, headers, body: "" };
}

export function world(rule: Rule, options: ClientOptions = {}): { clock: FakeClock; server: Server; client: Client } {
  const clock = new FakeClock();
  const server = new Server(clock, rule);
  const client = new Client(server, { clock, backoff: new Backoff({ rng: () => 0.5 }), ...options });
  return { clock, server, client };
}

/** Milliseconds between one busy answer and the retry. */
export async function waitAfter(retryAfter?: string, extra: { status?: number; name?: string } = {}, options = {}) {
  const busy = answer(extra.status ?? 429, retryAfter, extra.name);
  const { clock, server, client } = world((arrival) => (arrival === 1 ? busy : answer(200)), options);
  await clock.finish(client.send(GET));
  return server.arrivals[1]!.at;
}
