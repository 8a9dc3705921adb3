// Talks to the server: JSON calls, and server-sent events read through fetch (EventSource cannot send a key).

const KEY = "talkies-api-key";
const ROOT = new URL("../", import.meta.url); // of the API: this file is at web/ below it, whatever a proxy adds before

export const key = {
  get: () => sessionStorage.getItem(KEY) || "",
  set: (value) => sessionStorage.setItem(KEY, value),
};

export class ServerError extends Error {
  constructor(status, body) {
    const error = (body && body.error) || {};
    super(error.message || `the server answered ${status}`);
    this.status = status;
    this.param = error.param || null;
  }
}

function headers() {
  return key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
}

export async function call(path, options = {}) {
  const answer = await fetch(new URL(path.replace(/^\//, ""), ROOT), { ...options, headers: { ...headers(), ...options.headers } });
  if (!answer.ok) throw new ServerError(answer.status, await answer.json().catch(() => null));
  return answer;
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
      if (data) handle(name, JSON.parse(data));
    }
  }
}
