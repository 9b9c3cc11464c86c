import assert from "node:assert/strict";
import { test } from "node:test";

import { RetriesExhausted } from "/workspace/src/index.ts";
import type { Response } from "/workspace/src/index.ts";
import { answer, GET, world } from "./world.ts";

const ELSEWHERE = { method: "GET", url: "https://api.example.org/v1/orders" };

test("calls that start during a pause wait for its end", async () => {
  const { clock, server, client } = world((arrival) => (arrival === 1 ? answer(429, "30") : answer(200)));
  const first = client.send(GET);
  const later = [5_000, 10_000, 29_999].map((ms) => clock.sleep(ms).then(() => client.send(GET)));
  await clock.finish(Promise.all([first, ...later]));
  assert.equal(server.arrivals.length, 5);
  for (const { at } of server.arrivals.slice(1)) assert.ok(30_000 <= at && at <= 31_000, `a request at ${at}`);
});

test("a pause outlives the call that was told of it", async () => {
  const busyOnce = (arrival: number) => (arrival === 1 ? answer(429, "30") : answer(200));
  const { clock, server, client } = world(busyOnce, { maxAttempts: 1 });
  await assert.rejects(clock.finish(client.send(GET)), RetriesExhausted);
  assert.deepEqual(clock.sleeps, []);
  await clock.finish(client.send({ method: "POST", url: "https://API.example.com/v1/invoices?page=2" }));
  assert.ok(server.arrivals[1]!.at >= 30_000);
});

test("many calls at once do not storm the server", async () => {
  const open = (at: number) => at >= 30_000;
  const { clock, server, client } = world(() => {
    const at = server.arrivals.at(-1)!.at;
    return open(at) ? answer(200) : answer(429, String(Math.ceil((30_000 - at) / 1_000)));
  });
  await clock.finish(Promise.all(Array.from({ length: 20 }, () => client.send(GET))));
  assert.equal(server.arrivals.length, 40);
  assert.deepEqual(server.arrivals.filter(({ at }) => at > 0 && at < 30_000), []);
});

test("other hosts are not held up", async () => {
  const { clock, server, client } = world((_, request) =>
    request.url === GET.url && server.arrivals.length === 1 ? answer(429, "30") : answer(200),
  );
  await clock.finish(Promise.all([client.send(GET), clock.sleep(5_000).then(() => client.send(ELSEWHERE))]));
  assert.deepEqual(server.arrivals[1], { at: 5_000, url: ELSEWHERE.url });
});

/** Call A is answered at 10 s with `late`; call B at once with a pause of 30 s; call C starts at 5 s. */
async function disagreement(late: Response): Promise<number[]> {
  const { clock, server, client } = world(async (arrival) => {
    if (arrival === 1) await clock.sleep(10_000);
    return arrival === 1 ? late : arrival === 2 ? answer(429, "30") : answer(200);
  });
  const calls = [client.send(GET), client.send(GET), clock.sleep(5_000).then(() => client.send(GET))];
  await clock.finish(Promise.all(calls));
  return server.arrivals.slice(2).map(({ at }) => at);
}

test("a longer pause holds for those who wait already", async () => {
  const arrivals = await disagreement(answer(429, "60"));
  assert.equal(arrivals.length, 3);
  for (const at of arrivals) assert.ok(70_000 <= at && at <= 72_000, `a request at ${at}`);
});

test("a shorter pause does not end a longer one", async () => {
  const arrivals = await disagreement(answer(429, "1"));
  assert.equal(arrivals.length, 3);
  for (const at of arrivals) assert.ok(30_000 <= at && at <= 32_000, `a request at ${at}`);
});

test("nobody waits for a pause twice", async () => {
  const { clock, server, client } = world((arrival) => (arrival <= 2 ? answer(429, "30") : answer(200)));
  await clock.finish(client.send(GET));
  assert.ok(60_000 <= server.arrivals[2]!.at && server.arrivals[2]!.at <= 63_000);
});

test("the cap holds for everybody", async () => {
  const busyOnce = (arrival: number) => (arrival === 1 ? answer(429, "99999999") : answer(200));
  const { clock, server, client } = world(busyOnce, { maxAttempts: 1, maxWaitMs: 20_000 });
  await assert.rejects(clock.finish(client.send(GET)), RetriesExhausted);
  await clock.finish(client.send(GET));
  assert.ok(20_000 <= server.arrivals[1]!.at && server.arrivals[1]!.at <= 21_000);
});

test("a busy answer without the header pauses nobody else", async () => {
  const { clock, server, client } = world((arrival) => answer(arrival === 1 ? 429 : 200), { maxAttempts: 1 });
  await assert.rejects(clock.finish(client.send(GET)), RetriesExhausted);
  await clock.finish(client.send(GET));
  assert.equal(server.arrivals[1]!.at, 0);
});
