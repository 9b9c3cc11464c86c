import assert from "node:assert/strict";
import { test } from "node:test";

import { Backoff, Client } from "../src/index.ts";
import { FakeClock, FakeTransport } from "./fakes.ts";

test("jitter stays within the upper half of the delay", () => {
  const backoff = new Backoff();
  for (const [attempt, full] of [[1, 1_000], [2, 2_000], [3, 4_000], [7, 60_000], [20, 60_000]] as const) {
    const delay = backoff.delayMs(attempt);
    assert.ok(full / 2 <= delay && delay <= full, `${delay} after attempt ${attempt}`);
  }
});

test("each wait takes one number from the generator", async () => {
  const numbers = [0, 0.5, 1];
  const clock = new FakeClock();
  const backoff = new Backoff({ rng: () => numbers.shift() ?? NaN });
  const client = new Client(new FakeTransport([429, 429, 429, 200]), { clock, backoff });
  await client.send({ method: "GET", url: "https://api.example.com/" });
  assert.deepEqual(clock.sleeps, [500, 1_500, 4_000]);
});
