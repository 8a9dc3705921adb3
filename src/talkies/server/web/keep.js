// What this browser remembers: the requests it sent, with their files, and favourites. A browser that keeps nothing
// (private windows, full disks) has them until the page is closed.

import { address } from "./stream.js";

const NAME = `talkies ${address("")}`; // several servers can live below one host
const MAX_KEPT = 60;
const memory = new Map();

const opened = new Promise((resolve) => {
  const asked = indexedDB.open(NAME, 1);
  asked.onupgradeneeded = () => asked.result.createObjectStore("requests");
  asked.onsuccess = () => resolve(asked.result);
  asked.onerror = () => resolve(null);
});

async function store(mode, work) {
  const base = await opened;
  if (!base) return undefined;
  return new Promise((resolve) => {
    const requests = base.transaction("requests", mode).objectStore("requests");
    const asked = work(requests);
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = (event) => {
      event.preventDefault(); // a full disk is no reason for a broken page
      resolve(undefined);
    };
  });
}

export async function keepRequest(id, request) {
  memory.set(id, request);
  await store("readwrite", (requests) => requests.put({ ...request, savedAt: Date.now() }, id));
  const ids = (await store("readonly", (requests) => requests.getAllKeys())) || [];
  if (ids.length <= MAX_KEPT) return;
  const all = (await store("readonly", (requests) => requests.getAll())) || [];
  const byAge = ids.map((each, i) => [all[i].savedAt, each]).sort((a, b) => a[0] - b[0]);
  for (const [, old] of byAge.slice(0, ids.length - MAX_KEPT)) await dropRequest(old);
}

// Undefined for a job of another browser, or of long ago.
export async function keptRequest(id) {
  return memory.get(id) || (await store("readonly", (requests) => requests.get(id)));
}

export async function dropRequest(id) {
  memory.delete(id);
  await store("readwrite", (requests) => requests.delete(id));
}

const FAVOURITES = `${NAME} favourites`;

function readFavourites() {
  try {
    return new Set(JSON.parse(localStorage.getItem(FAVOURITES)) || []);
  } catch {
    return new Set();
  }
}

export const favourites = readFavourites();

export function setFavourite(id, isOn) {
  if (isOn) favourites.add(id);
  else favourites.delete(id);
  try {
    localStorage.setItem(FAVOURITES, JSON.stringify([...favourites]));
  } catch {
    // kept until the page is closed
  }
}
