export { Backoff } from "./backoff.ts";
export { Client, type ClientOptions } from "./client.ts";
export { type Clock, SystemClock } from "./clock.ts";
export { RetriesExhausted } from "./errors.ts";
export { FetchTransport, type Request, type Response, type Transport } from "./transport.ts";
