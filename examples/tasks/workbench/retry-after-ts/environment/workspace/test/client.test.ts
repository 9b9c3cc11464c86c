import assert from "node:assert/strict";
import { test } from "node:test";

import { Backoff, Client, RetriesExhausted } from "../src/index.ts";
import { FakeClock, FakeTransport } from "./fakes.ts";

const GET = { method: "GET", url: "https://api.example.com/v1/orders" };
const backoff = new Backoff({ rng: () => 0 });

test("an answer is returned at once", async () => {
  const clock = new FakeClock();
  const response = await new Client(new FakeTransport([404]), { clock, backoff }).send(GET);
  assert.equal(response.status, 404);
  assert.deepEqual(clock.sleeps, []);
});

test("a busy server is asked again", async () => {
  const clock = new FakeClock();
  const response = await new Client(new FakeTransport([503, 429, 200]), { clock, backoff }).send(GET);
  assert.equal(response.status, 200);
  assert.deepEqual(clock.sleeps, [500, 1_000]);
});

test("the last attempt is not followed by a wait", async () => {
  const clock = new FakeClock();
  const transport = new FakeTransport([429, 429, 429]);
  await assert.rejects(new Client(transport, { clock, backoff, maxAttempts: 3 }).send(GET), RetriesExhausted);
  assert.equal(transport.requests.length, 3);
  assert.deepEqual(clock.sleeps, [500, 1_000]);
});
