// All clips as cards: search, favourites, the way to the stage.

import { $, button, element, starButton } from "./dom.js";
import * as jobs from "./jobs.js";
import { favourites, setFavourite } from "./keep.js";
import { content, key } from "./stream.js";
import { brief, isEnded } from "./words.js";

const PAGE = 100;
const cards = new Map(); // id -> {node, picture, ...}
let actions = { open: () => {}, remove: () => {}, fail: () => {} };
let chosen = null;

export function prepare(given) {
  actions = given;
  $("search").oninput = () => search().catch(actions.fail);
  $("only").onclick = () => {
    $("only").setAttribute("aria-pressed", String(!isOnly()));
    search().catch(actions.fail);
  };
  filter();
  $("more").onclick = () => jobs.older().then(filter).catch(actions.fail);
}

const isOnly = () => $("only").getAttribute("aria-pressed") === "true";

export function show(job) {
  let card = cards.get(job.id);
  if (!card) {
    card = make(job);
    cards.set(job.id, card);
    $("jobs").insertBefore(card.node, placeFor(job));
  }
  card.created = job.created_at;
  card.node.dataset.status = job.status;
  card.prompt.textContent = job.prompt;
  card.state.textContent = brief(job);
  card.bar.value = job.progress;
  card.bar.hidden = isEnded(job);
  card.remove.hidden = !isEnded(job);
  card.open.setAttribute("aria-label", `Show: ${job.prompt}`);
  if (job.status === "completed" && !card.hasPicture) {
    card.hasPicture = true;
    content(job, "thumbnail")
      .then((url) => setPicture(card, url))
      .catch(() => (card.hasPicture = false));
  }
  filter();
}

// Newest first. Jobs of one second arrive in order, so the later one of them goes before.
function placeFor(job) {
  return [...$("jobs").children].find((node) => cards.get(node.id).created <= job.created_at) || null;
}

export function preview(id, url) {
  const card = cards.get(id);
  if (card && !card.hasPicture) setPicture(card, url);
}

function setPicture(card, url) {
  if (card.picture.src.startsWith("blob:")) URL.revokeObjectURL(card.picture.src);
  card.picture.src = url;
}

function make(job) {
  const id = job.id;
  const picture = element("img", { alt: "", loading: key.get() ? "eager" : "lazy" });
  const card = {
    picture,
    created: job.created_at,
    prompt: element("p", { className: "prompt" }),
    state: element("p", { className: "state quiet" }),
    bar: element("progress", { max: 100, "aria-label": "Progress" }),
    open: button("", () => actions.open(id), { className: "open" }),
    star: starButton(favourites.has(id), () => toggle(id)),
    remove: button("Delete", () => actions.remove(id), { className: "delete" }),
  };
  card.open.append(element("span", { className: "picture" }, picture), card.bar);
  const side = element("div", { className: "side" }, card.star, card.remove);
  card.node = element("li", { id }, card.open, card.prompt, element("div", { className: "foot" }, card.state, side));
  card.node.dataset.chosen = id === chosen;
  return card;
}

export function toggle(id) {
  const isOn = !favourites.has(id);
  setFavourite(id, isOn);
  cards.get(id)?.star.setAttribute("aria-pressed", String(isOn));
  filter();
  return isOn;
}

export function choose(id) {
  chosen = id;
  for (const [each, card] of cards) {
    card.node.dataset.chosen = each === id;
    if (each === id) card.open.setAttribute("aria-current", "true");
    else card.open.removeAttribute("aria-current");
  }
}

export function forget(id) {
  const card = cards.get(id);
  if (!card) return;
  if (card.picture.src.startsWith("blob:")) URL.revokeObjectURL(card.picture.src);
  card.node.remove();
  cards.delete(id);
  filter();
}

// Brings in what the filter is about: favourites by name, older clips page by page.
async function search() {
  filter();
  if (isOnly()) for (const id of favourites) if (!jobs.get(id)) await jobs.lookUp(id);
  while ($("search").value.trim() && jobs.more()) {
    await jobs.older(PAGE);
    filter();
  }
  filter();
}

function filter() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let visible = 0;
  for (const [id, card] of cards) {
    const prompt = card.prompt.textContent.toLowerCase();
    const fits = words.every((word) => prompt.includes(word)) && (!isOnly() || favourites.has(id));
    card.node.hidden = !fits;
    visible += fits;
  }
  $("more").hidden = !jobs.more() || isOnly() || words.length > 0;
  $("search-row").hidden = cards.size === 0;
  $("none").hidden = visible > 0;
  $("none").textContent = cards.size ? "No clip fits." : "Clips that you make are kept here.";
}
