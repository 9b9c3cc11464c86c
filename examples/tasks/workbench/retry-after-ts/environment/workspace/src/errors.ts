import type { Response } from "./transport.ts";

/** The last allowed attempt was answered with a status that asks to try again. */
export class RetriesExhausted extends Error {
  readonly response: Response;
  readonly attempts: number;

  constructor(response: Response, attempts: number) {
    super(`status ${response.status} after ${attempts} attempts`);
    this.name = "RetriesExhausted";
    this.response = response;
    this.attempts = attempts;
  }
}
