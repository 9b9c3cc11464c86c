import assert from "node:assert/strict";
import { test } from "node:test";

import { Backoff, RetriesExhausted } from "/workspace/src/index.ts";
import { answer, BACKOFF, GET, waitAfter, world } from "./world.ts";

test("jitter stays within the upper half of the delay", () => {
  const backoff = new Backoff();
  for (const [attempt, full] of [[1, 1_000], [2, 2_000], [3, 4_000], [7, 60_000], [20, 60_000]] as const) {
    const delay = backoff.delayMs(attempt);
    assert.ok(full / 2 <= delay && delay <= full, `${delay} after attempt ${attempt}`);
  }
});

test("each wait takes one number from the generator", async () => {
  const numbers = [0, 0.5, 1];
  const backoff = new Backoff({ rng: () => numbers.shift() ?? NaN });
  const { clock, client } = world((arrival) => answer(arrival < 4 ? 429 : 200), { backoff });
  await clock.finish(client.send(GET));
  assert.deepEqual(clock.sleeps, [500, 1_500, 4_000]);
});

test("other busy answers use the backoff", async () => {
  for (const status of [502, 503, 504]) {
    assert.equal(await waitAfter(undefined, { status }), BACKOFF);
    assert.equal(await waitAfter("30", { status }), BACKOFF);
  }
});

test("other answers are returned at once", async () => {
  for (const status of [200, 404, 500]) {
    const { clock, client } = world(() => answer(status, "30"));
    assert.equal((await clock.finish(client.send(GET))).status, status);
    assert.equal((await clock.finish(client.send(GET))).status, status);
    assert.deepEqual(clock.sleeps, []);
  }
});

test("the last answer is in the error", async () => {
  const { clock, client } = world(() => answer(503), { maxAttempts: 3 });
  await assert.rejects(clock.finish(client.send(GET)), (error: unknown) => {
    assert.ok(error instanceof RetriesExhausted);
    assert.equal(error.response.status, 503);
    return error.attempts === 3;
  });
  assert.deepEqual(clock.sleeps, [750, 1_500]);
});
