export interface Request {
  readonly method: string;
  readonly url: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string;
}

/** `headers` keeps the names as the transport delivers them. */
export interface Response {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
}

export interface Transport {
  /** One exchange. A status of 400 or more is an answer, not an error. */
  send(request: Request): Promise<Response>;
}

/** The platform's `fetch`, one connection a request. */
export class FetchTransport implements Transport {
  async send(request: Request): Promise<Response> {
    const { method, headers, body } = request;
    const answer = await fetch(request.url, { method, headers, body });
    return { status: answer.status, headers: Object.fromEntries(answer.headers), body: await answer.text() };
  }
}
