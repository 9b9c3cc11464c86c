import type { Response } from "./transport.ts";

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const TIME = "(?<time>\\d{2}:\\d{2}:\\d{2})";

/** RFC 9110, section 5.6.7. `Date.parse` takes far more than these ("soon 1" is a date to it), and asctime as local. */
const FORMATS = [
  new RegExp(`^[A-Z][a-z]{2}, (?<day>\\d{2}) (?<month>[A-Z][a-z]{2}) (?<year>\\d{4}) ${TIME} GMT$`),
  new RegExp(`^[A-Z][a-z]{5,8}, (?<day>\\d{2})-(?<month>[A-Z][a-z]{2})-(?<year>\\d{2}) ${TIME} GMT$`),
  new RegExp(`^[A-Z][a-z]{2} (?<month>[A-Z][a-z]{2}) (?<day>[ \\d]\\d) ${TIME} (?<year>\\d{4})$`),
];

/** Milliseconds from `now` that the server asks to wait, 0 for the past; undefined where it does not say. */
export function retryAfterMs(response: Response, now: number): number | undefined {
  const header = Object.entries(response.headers).find(([name]) => name.toLowerCase() === "retry-after");
  const value = header?.[1].trim() ?? "";
  if (/^[0-9]+$/.test(value)) return Number(value) * 1_000;
  const moment = httpDate(value, now);
  return moment === undefined ? undefined : Math.max(0, moment - now);
}

function httpDate(value: string, now: number): number | undefined {
  for (const format of FORMATS) {
    const parts = format.exec(value)?.groups;
    if (parts) return moment(parts as Record<"day" | "month" | "year" | "time", string>, now);
  }
  return undefined;
}

function moment(parts: Record<"day" | "month" | "year" | "time", string>, now: number): number | undefined {
  const month = MONTHS.indexOf(parts.month);
  const day = Number(parts.day);
  const [hour, minute, second] = parts.time.split(":").map(Number) as [number, number, number];
  if (month < 0 || hour > 23 || minute > 59 || second > 60) return undefined;
  const date = new Date(0);
  date.setUTCFullYear(parts.year.length === 2 ? fullYear(Number(parts.year), now) : Number(parts.year), month, day);
  if (date.getUTCMonth() !== month || date.getUTCDate() !== day) return undefined;
  return date.setUTCHours(hour, minute, second);
}

/** A two-digit year more than 50 years ahead means the past century. */
function fullYear(year: number, now: number): number {
  const current = new Date(now).getUTCFullYear();
  const sameCentury = current - (current % 100) + year;
  return sameCentury > current + 50 ? sameCentury - 100 : sameCentury;
}
