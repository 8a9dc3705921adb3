// The page: a stage, a form, and the clips made so far. No framework, no outside asset.

import * as composer from "./composer.js";
import { remove } from "./deletion.js";
import { $, announce, copyText, starButton } from "./dom.js";
import * as history from "./history.js";
import * as jobs from "./jobs.js";
import { favourites, keepRequest, keptRequest } from "./keep.js";
import { ofJob, toCurl, toPython } from "./request.js";
import * as stage from "./stage.js";
import { ServerError, address, call, key } from "./stream.js";
import { isEnded, loading } from "./words.js";

const POLL_MS = 2000;
const EXAMPLE = $("prompt").placeholder;
const EMPTY = {
  title: "Your clip plays here",
  text: "Describe what is seen and what is heard.",
  action: { text: "Try an example", run: tryExample },
};
let wasReady = false;
let wasLoading = false;
let isModelKnown = false;
let isFirst = true;

function tryExample() {
  $("prompt").value = EXAMPLE;
  $("prompt").focus();
}

// ---- what the server says

jobs.listeners.changed = (job, isNew) => {
  history.show(job);
  if (stage.current()?.id === job.id) draw(job);
  else if (isNew && !stage.current() && !isEnded(job)) open(job.id);
};
jobs.listeners.preview = (job, output, url) => {
  stage.preview(job, output, url);
  history.preview(job.id, url);
};
jobs.listeners.gone = (id) => {
  history.forget(id);
  if (stage.current()?.id !== id) return;
  stage.clear();
  history.choose(null);
  stage.placeholder(EMPTY);
};

function draw(job) {
  stage.show(job);
  const star = starButton(favourites.has(job.id), () => {
    star.setAttribute("aria-pressed", String(history.toggle(job.id)));
  });
  const old = $("star-place").firstChild;
  if (old?.dataset.job !== job.id || old.getAttribute("aria-pressed") !== star.getAttribute("aria-pressed")) {
    star.dataset.job = job.id;
    $("star-place").replaceChildren(star);
  }
}

function open(id) {
  const job = jobs.get(id);
  if (!job) return;
  draw(job);
  history.choose(id);
  jobs.follow(id);
}

// Focus stays where it is: somebody may want the next card, or go on writing.
function openByHand(id) {
  open(id);
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const { top, bottom } = $("frames").getBoundingClientRect();
  if (top < 0 || bottom > innerHeight) $("stage").scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
}

// ---- what somebody does

function begin({ job, request }) {
  keepRequest(job.id, request);
  jobs.put(job);
  openByHand(job.id);
}

const requestOf = async (job) => (await keptRequest(job.id)) || ofJob(job);

async function again() {
  const job = stage.current();
  const request = await requestOf(job);
  composer.fill(request);
  $("form").scrollIntoView({ block: "nearest" });
  const isMissing = job.task !== "t2va" && !request.references.length;
  announce(isMissing ? "Settings copied; its references are not in this browser, add them again" : "Settings copied");
  $("task").textContent = isMissing ? "Its references are not in this browser: add them again." : $("task").textContent;
}

async function copy(button, write) {
  await copyText(write(await requestOf(stage.current()), address("v1/videos"), key.get() !== ""));
  const text = button.textContent;
  button.textContent = "Copied";
  announce("Copied");
  setTimeout(() => (button.textContent = text), 1500);
}

function discard(id) {
  const job = jobs.get(id);
  const wasShown = stage.current()?.id === id;
  const undone = () => (wasShown ? openByHand(id) : document.getElementById(id)?.querySelector("button").focus());
  if (job) remove(job, { back: () => $("history-title").focus(), fail: composer.complain, undone });
}

$("again").onclick = () => again().catch(composer.complain);
$("curl").onclick = () => copy($("curl"), toCurl).catch(composer.complain);
$("python").onclick = () => copy($("python"), toPython).catch(composer.complain);
$("delete").onclick = () => discard(stage.current().id);
$("cancel").onclick = () => {
  jobs.cancel(stage.current().id).catch(composer.complain);
  $("prompt").focus({ preventScroll: true });
};

// ---- the pulse

function banner(text) {
  if ($("banner").textContent !== text) $("banner").textContent = text;
  $("banner").hidden = !text;
}

// What stands on the empty stage, and above a clip while the server cannot make another.
function tell(state) {
  stage.placeholder(state);
  banner(state === EMPTY || !stage.current() ? "" : `${state.title}. ${state.text}`);
}

// Whether a POST would be served; while the model loads, what it is at.
async function lookAtHealth() {
  try {
    await call("health");
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    if (error.message.includes("dead")) {
      composer.setReady(false);
      tell({ title: "The engine has stopped", text: "Whoever runs this server has to start it again." });
      return;
    }
    // Once it was ready, a server takes requests while it replaces its worker.
    const title = wasReady ? "The engine is starting again" : "The model is loading";
    composer.setReady(wasReady);
    tell({ title, text: loading(error.message), busy: true });
    wasLoading = true;
    return;
  }
  if (wasLoading) announce("The model is ready");
  [wasReady, wasLoading] = [true, false];
  composer.setReady(true);
  tell(EMPTY);
}

async function beat() {
  try {
    await lookAtHealth();
    if (!isModelKnown) {
      await composer.describeModel();
      isModelKnown = true;
      composer.letIn();
    }
    await jobs.refresh();
    const [newest] = jobs.all();
    if (isFirst && newest && !stage.current()) open(newest.id);
    isFirst = false;
  } catch (error) {
    if (!(error instanceof ServerError)) banner("The server cannot be reached. Trying again.");
    else if (error.status === 401 && $("key-row").hidden) composer.complain(error);
  }
}

async function beatForEver() {
  if (!document.hidden) await beat();
  setTimeout(beatForEver, POLL_MS);
}

composer.prepare({ onSubmit: begin, onKey: beat });
history.prepare({ open: openByHand, remove: discard, fail: composer.complain });
stage.placeholder({ title: "Connecting", text: "One moment.", busy: true });
beatForEver();
