// Talks to the server: JSON calls, and server-sent events read through fetch (EventSource cannot send a key).

const KEY = "talkies-api-key";
const BASE = new URL("../", import.meta.url); // the page may be served below a path of somebody else's server

export const key = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

export const address = (path) => new URL(path, BASE).href;

export class ServerError extends Error {
  constructor(status, body, retryAfter) {
    const error = (body && body.error) || {};
    super(error.message || `the server answered ${status}`);
    this.status = status;
    this.param = error.param || null;
    this.retryAfter = Number(retryAfter) || null;
  }
}

function headers() {
  return key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
}

// ``path`` is relative to the page: v1/videos, not /v1/videos.
export async function call(path, options = {}) {
  const answer = await fetch(address(path), { ...options, headers: { ...headers(), ...options.headers } });
  if (!answer.ok) {
    throw new ServerError(answer.status, await answer.json().catch(() => null), answer.headers.get("retry-after"));
  }
  return answer;
}

// A seed has 64 bits and a number of the browser 53: a large one stays text. Inside of text a quote is \\", not ".
const LONG_SEED = /(?<=[{,])"seed":(-?\d{16,})(?=[,}])/g;
const parse = (text) => JSON.parse(text.replace(LONG_SEED, '"seed":"$1"'));

export async function callJson(path, options) {
  return parse(await (await call(path, options)).text());
}

// Calls handle(event, data) for each event until the stream ends; resolves then. Abort through the signal.
export async function events(path, signal, handle) {
  const answer = await call(path, { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const block = text.slice(0, end);
      text = text.slice(end + 2);
      let name = "message";
      let data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) handle(name, parse(data));
    }
  }
}

// The address of a clip or picture, for src. A browser asks for media without our key, so with one it becomes a blob.
export async function content(job, variant) {
  const path = `v1/videos/${job.id}/content${variant === undefined ? "" : `?variant=${variant}`}`;
  if (!key.get()) return address(path); // the browser itself asks for ranges
  return URL.createObjectURL(await (await call(path)).blob());
}
