// The jobs that the page knows, kept fresh: polled as a list, and the most interesting ones followed as streams.

import { call, callJson, events } from "./stream.js";
import { isEnded } from "./words.js";

const MAX_STREAMS = 2; // a browser opens six connections per host; most must stay free for everything else
const jobs = new Map();
const previews = new Map(); // id -> Map of output -> data URL
const streams = new Map(); // id -> AbortController
const hidden = new Set(); // deleted on the page, not yet on the server
let oldest = null;
let hasOlder = false;
let chosen = null;

// Calls on the page: changed(job, isNew), preview(job, output, url), gone(id).
export const listeners = { changed: () => {}, preview: () => {}, gone: () => {} };

export const get = (id) => (hidden.has(id) ? undefined : jobs.get(id));
export const all = () => [...jobs.values()].filter((job) => !hidden.has(job.id)).sort((a, b) => b.created_at - a.created_at);
export const previewsOf = (id) => previews.get(id) || new Map();
export const more = () => hasOlder;

export function put(job) {
  const isNew = !jobs.has(job.id);
  jobs.set(job.id, job);
  if (!hidden.has(job.id)) listeners.changed(job, isNew);
}

export function forget(id) {
  streams.get(id)?.abort();
  streams.delete(id);
  previews.delete(id);
  if (jobs.delete(id)) listeners.gone(id);
}

// Deletion waits for an undo; until then the job is out of sight.
export function hide(id) {
  hidden.add(id);
  listeners.gone(id);
}

export function unhide(id) {
  hidden.delete(id);
  if (jobs.has(id)) listeners.changed(jobs.get(id), true);
}

// Which of its outputs a running job is at. Each has an equal part of the whole.
export function outputOf(job) {
  return Math.min(job.num_outputs - 1, Math.floor(((job.progress + 0.5) / 100) * job.num_outputs));
}

export function follow(id = chosen) {
  chosen = id;
  const open = all().filter((job) => !isEnded(job));
  const rank = (job) => (job.id === chosen ? 0 : job.status === "in_progress" ? 1 : 2);
  open.sort((a, b) => rank(a) - rank(b) || a.created_at - b.created_at);
  const wanted = new Set(open.slice(0, MAX_STREAMS).map((job) => job.id));
  for (const [followed, controller] of streams) {
    if (!wanted.has(followed)) {
      controller.abort();
      streams.delete(followed);
    }
  }
  for (const each of wanted) if (!streams.has(each)) watch(each);
}

async function watch(id) {
  const controller = new AbortController();
  streams.set(id, controller);
  try {
    await events(`v1/videos/${id}/events`, controller.signal, (name, data) => {
      const job = jobs.get(id);
      if (!job) return;
      if (name === "preview") {
        const output = outputOf(job);
        if (!previews.has(id)) previews.set(id, new Map());
        previews.get(id).set(output, `data:image/jpeg;base64,${data.jpeg}`);
        if (!hidden.has(id)) listeners.preview(job, output, previews.get(id).get(output));
      } else if (name === "deleted") forget(id);
      else put({ ...job, ...data });
    });
  } catch {
    // The next poll says what is the matter, and follows again.
  } finally {
    if (streams.get(id) === controller) streams.delete(id);
  }
}

export async function refresh() {
  const page = await callJson("v1/videos?limit=20");
  for (const job of [...page.data].reverse()) {
    // A stream knows more than a poll that was answered a moment ago.
    if (!streams.has(job.id)) put(job);
  }
  if (oldest === null && page.data.length) {
    oldest = page.last_id;
    hasOlder = page.has_more;
  }
  for (const job of all()) {
    const unseen = !streams.has(job.id) && !page.data.some((each) => each.id === job.id);
    if (unseen && !isEnded(job)) await lookUp(job.id);
  }
  follow();
}

// Asks for one job; one that is gone is forgotten.
export async function lookUp(id) {
  try {
    put(await callJson(`v1/videos/${id}`));
  } catch (error) {
    if (error.status === 404 || error.status === 410) forget(id);
  }
  return get(id);
}

export async function older(limit = 20) {
  const page = await callJson(`v1/videos?limit=${limit}&after=${encodeURIComponent(oldest)}`);
  page.data.forEach(put);
  oldest = page.last_id ?? oldest;
  hasOlder = page.has_more;
}

// Stops the job at its next step. A server that knows no such call loses the record with it.
export async function cancel(id) {
  try {
    put(await callJson(`v1/videos/${id}/cancel`, { method: "POST" }));
  } catch (error) {
    if (![404, 405, 501].includes(error.status)) throw error;
    await call(`v1/videos/${id}`, { method: "DELETE" });
    forget(id);
  }
}
