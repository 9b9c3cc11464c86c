import assert from "node:assert/strict";
import { test } from "node:test";

import { RetriesExhausted } from "/workspace/src/index.ts";
import { answer, BACKOFF, GET, NOW, waitAfter, world } from "./world.ts";

process.env.TZ = "America/New_York"; // a machine whose zone is not UTC

function within(actual: number, least: number, most: number, what: string): void {
  assert.ok(least <= actual && actual <= most, `${JSON.stringify(what)}: waited ${actual}, not ${least} to ${most}`);
}

/** The three date formats of RFC 9110 for one moment. */
function dates(ms: number): string[] {
  const date = new Date(ms);
  const imf = date.toUTCString();
  const [day, month, year, time] = imf.slice(5).split(" ") as [string, string, string, string];
  const weekday = date.toLocaleDateString("en-US", { weekday: "long", timeZone: "UTC" });
  return [
    imf,
    `${weekday}, ${day}-${month}-${year.slice(2)} ${time} GMT`,
    `${imf.slice(0, 3)} ${month} ${String(Number(day)).padStart(2)} ${time} ${year}`,
  ];
}

test("seconds are waited", async () => {
  for (const seconds of [2, 30, 119]) {
    within(await waitAfter(String(seconds)), seconds * 1_000, seconds * 1_000 + BACKOFF, String(seconds));
  }
});

test("header names have no case", async () => {
  for (const name of ["Retry-After", "RETRY-AFTER", "retry-After"]) {
    within(await waitAfter("30", { name }), 30_000, 30_000 + BACKOFF, name);
  }
});

test("an HTTP-date in each of its formats is waited for", async () => {
  for (const value of dates(NOW + 45_000)) within(await waitAfter(value), 45_000, 45_000 + BACKOFF, value);
});

test("zero and the past do not mean at once", async () => {
  for (const value of ["0", "000", ...dates(NOW), ...dates(NOW - 3_600_000), ...dates(NOW - 10 ** 12)]) {
    within(await waitAfter(value), BACKOFF, BACKOFF, value);
  }
});

test("a short time does not undercut the backoff", async () => {
  const { clock, server, client } = world((arrival) => (arrival < 5 ? answer(429, "1") : answer(200)));
  await clock.finish(client.send(GET));
  for (const [index, backoff] of [750, 1_500, 3_000, 6_000].entries()) {
    const wait = server.arrivals[index + 1]!.at - server.arrivals[index]!.at;
    within(wait, Math.max(1_000, backoff), 1_000 + backoff, `attempt ${index + 1}`);
  }
});

test("a header of another form counts as missing", async () => {
  const numbers = ["", " ", "-5", "+5", "1e3", "Infinity", "NaN", "0x10", "1_000", "1,5", "²", "٣٠", "30 seconds"];
  const words = ["soon", "soon 1", "after 2032", "GMT", "\u0000", "null", "undefined"];
  const calendars = ["2031-10-17", "2031-10-17T08:01:00Z", "10/17/2031", "Sat, 17 Foo 2031 08:01:00 GMT"];
  const impossible = ["Sat, 99 Oct 2031 99:99:99 GMT", "Sat, 32 Oct 2031 08:01:00 GMT"];
  for (const value of [...numbers, ...words, ...calendars, ...impossible]) {
    within(await waitAfter(value), BACKOFF, BACKOFF, value);
  }
});

test("no wait is longer than the cap", async () => {
  for (const value of ["121", "86400", "9".repeat(40), "9".repeat(400), "9".repeat(5_000), ...dates(NOW + 10 ** 9)]) {
    within(await waitAfter(value), 120_000, 120_000, value.slice(0, 40));
    within(await waitAfter(value, {}, { maxWaitMs: 10_000 }), 10_000, 10_000, value.slice(0, 40));
  }
});

test("attempts stay bounded", async () => {
  const { clock, server, client } = world(() => answer(429, "1"), { maxAttempts: 4 });
  await assert.rejects(clock.finish(client.send(GET)), (error: unknown) => {
    assert.ok(error instanceof RetriesExhausted);
    assert.equal(error.attempts, 4);
    assert.equal(error.response.status, 429);
    return true;
  });
  assert.equal(server.arrivals.length, 4);
});
