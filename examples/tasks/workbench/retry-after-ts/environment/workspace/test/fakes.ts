import type { Clock, Request, Response, Transport } from "../src/index.ts";

/** A clock that only moves when somebody sleeps. */
export class FakeClock implements Clock {
  readonly sleeps: number[] = [];
  #now = 1_900_000_000_000;

  now(): number {
    return this.#now;
  }

  async sleep(ms: number): Promise<void> {
    this.sleeps.push(ms);
    this.#now += ms;
  }
}

/** Gives the prepared answers in their order. */
export class FakeTransport implements Transport {
  readonly requests: Request[] = [];
  readonly #statuses: number[];

  constructor(statuses: number[]) {
    this.#statuses = [...statuses];
  }

  async send(request: Request): Promise<Response> {
    this.requests.push(request);
    const status = this.#statuses.shift();
    if (status === undefined) throw new Error("no answer left");
    return { status, headers: {}, body: "" };
  }
}
