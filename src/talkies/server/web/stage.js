// The one place where a clip is watched: its previews while it is made, then itself.

import { $, announce, button, element } from "./dom.js";
import { outputOf, previewsOf } from "./jobs.js";
import { content, key } from "./stream.js";
import { describe, detail, facts, isEnded, sentence } from "./words.js";

let shown = null; // the job
let drawn = ""; // what the frames were built for
let frames = []; // one an output: {figure, slot, note}
let blobs = [];

export const current = () => shown;

// Before there is a clip. ``about``: {title, text, busy, action}.
export function placeholder({ title, text, busy, action }) {
  const signature = JSON.stringify([title, text, busy]);
  if (shown || drawn === signature) return;
  drawn = signature;
  const box = element("div", { className: "placeholder" }, element("p", { className: "title", textContent: title }));
  if (busy) box.append(element("progress", { "aria-label": title }));
  box.append(element("p", { className: "quiet", textContent: text }));
  if (action) box.append(button(action.text, action.run));
  $("frames").replaceChildren(box);
  $("stage").dataset.phase = "empty";
  if (busy) announce(`${title}. ${text}`);
}

export function show(job) {
  const was = shown;
  shown = job;
  const phase = job.status === "completed" ? "done" : job.status === "failed" ? "failed" : "running";
  $("stage").dataset.phase = phase;
  const signature = `${job.id} ${phase}`;
  if (signature !== drawn) {
    drawn = signature;
    build(job, phase);
    if (phase === "done") fillVideos(job, was !== null && was.id === job.id);
    if (phase === "running") for (const [output, url] of previewsOf(job.id)) preview(job, output, url);
  }
  $("state").textContent = phase === "failed" ? "Again brings its settings back." : describe(job);
  $("bar").value = job.progress;
  $("caption").textContent = job.prompt;
  $("facts").textContent = facts(job);
  const notes = [...new Set([detail(job), ...job.warnings].filter(Boolean).map(sentence))];
  $("notes").replaceChildren(...notes.map((text) => element("li", { textContent: text })));
  if (phase === "running") mark(job);
  speak(job, was);
  document.title = isEnded(job) ? "talkies" : `${job.progress} % · talkies`;
}

export function clear() {
  release();
  shown = null;
  drawn = "";
  frames = [];
  document.title = "talkies";
}

export function preview(job, output, url) {
  if (!shown || shown.id !== job.id || isEnded(shown) || !frames[output]) return;
  let image = frames[output].slot.querySelector("img");
  if (!image) {
    image = element("img", { alt: `Preview of ${nameOf(output, job)}` });
    frames[output].slot.replaceChildren(image);
  }
  image.src = url;
}

const nameOf = (output, job) => (job.num_outputs > 1 ? `clip ${output + 1} of ${job.num_outputs}` : "the clip");

function build(job, phase) {
  release();
  const [width, height] = job.size.split("x").map(Number);
  frames = Array.from({ length: job.num_outputs }, (_, output) => {
    const slot = element("div", { className: "slot" });
    const note = element("figcaption");
    const figure = element("figure", {}, slot, note);
    note.textContent = `Seed ${seedOf(job, output)}`;
    note.hidden = job.num_outputs === 1;
    return { figure, slot, note };
  });
  const grid = element("div", { className: "grid" }, ...frames.map((frame) => frame.figure));
  // Over all frames, which keep their size: nothing below may jump to where Cancel just was.
  if (phase === "failed") grid.append(element("p", { className: "failure", textContent: describe(job) }));
  grid.style.setProperty("--ratio", width / height);
  grid.dataset.count = frames.length;
  grid.dataset.tall = height > width;
  $("frames").replaceChildren(grid);
  $("download-place").replaceChildren();
}

const seedOf = (job, output) => String(BigInt(job.seed) + BigInt(output));

// The output in work, for eyes; the progress row says the rest.
function mark(job) {
  const at = job.status === "in_progress" ? outputOf(job) : -1;
  frames.forEach((frame, output) => (frame.figure.dataset.state = output === at ? "running" : output < at ? "made" : "waiting"));
}

async function fillVideos(job, wasWatched) {
  const poster = await content(job, "thumbnail").catch(() => "");
  keepBlob(poster);
  frames.forEach(async ({ slot, note }, output) => {
    const video = element("video", { playsInline: true, preload: "auto", tabIndex: 0 });
    controlsOf(video, job.num_outputs > 1);
    video.setAttribute("aria-label", `${nameOf(output, job)}: ${job.prompt}`);
    if (output === 0 && poster) video.poster = poster;
    video.onplay = () => $("frames").querySelectorAll("video").forEach((other) => other !== video && other.pause());
    const url = await content(job, output).catch(() => "");
    keepBlob(url);
    if (shown?.id !== job.id) return;
    video.src = url;
    slot.replaceChildren(video);
    const link = element("a", { href: url, download: `${job.id}${output ? `-${output}` : ""}.mp4`, className: "download" });
    link.textContent = "Download";
    link.setAttribute("aria-label", `Download ${nameOf(output, job)}`);
    if (job.num_outputs > 1) note.append(link);
    else $("download-place").replaceChildren(link);
    // A clip that was waited for begins by itself, if the browser allows it.
    if (output === 0 && wasWatched && document.hasFocus()) video.play().catch(() => {});
  });
}

// On a small picture the controls hide the clip: there they come with the pointer or the focus.
function controlsOf(video, isSmall) {
  video.controls = !isSmall;
  if (!isSmall) return;
  video.onpointerenter = video.onfocus = () => (video.controls = true);
  video.onpointerleave = () => (video.controls = document.activeElement === video);
  video.onblur = () => (video.controls = video.matches(":hover"));
}

function keepBlob(url) {
  if (key.get() && url) blobs.push(url);
}

function release() {
  blobs.forEach((url) => URL.revokeObjectURL(url));
  blobs = [];
}

// Screen readers hear beginnings, quarters and ends, not every step.
function speak(job, was) {
  if (was?.id !== job.id) return;
  const quarter = Math.floor(job.progress / 25);
  const isNews = was.status !== job.status || was.stage !== job.stage || Math.floor(was.progress / 25) !== quarter;
  if (isNews) announce(isEnded(job) ? describe(job) : `${describe(job)}, ${job.progress} percent`);
}
