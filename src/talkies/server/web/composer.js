// The form: from what somebody wrote to a request, and back.

import { $, announce } from "./dom.js";
import { allowTasks, mark, references, setReferences } from "./references.js";
import { sent, toForm } from "./request.js";
import { ServerError, callJson, key } from "./stream.js";
import { complaint } from "./words.js";

// Elements -> the server's fields, whose defaults stay the server's as long as they are empty.
const FIELDS = {
  prompt: "prompt",
  aspect: "aspect_ratio",
  seconds: "seconds",
  outputs: "n",
  seed: "seed",
  steps: "num_inference_steps",
  shift: "flow_shift",
  quality: "quality",
  fit: "fit",
  audio: "audio",
};
let seedIsDrawn = true;
let isReady = false;
let isSending = false;
let isKeyAsked = false; // by the complaint that the page shows

function drawSeed() {
  $("seed").value = Math.floor(Math.random() * 2 ** 31);
  seedIsDrawn = true;
  summarize();
}

function summarize() {
  $("summary").textContent = `seed ${$("seed").value}`;
}

function read() {
  const fields = {};
  for (const [id, name] of Object.entries(FIELDS)) fields[name] = $(id).value.trim();
  fields.prompt = $("prompt").value; // verbatim
  fields.seconds = fields.seconds.replace(",", ".");
  return { fields, references: references() };
}

export function fill(request) {
  for (const [id, name] of Object.entries(FIELDS)) $(id).value = request.fields[name] ?? "";
  const { size } = request.fields;
  const shape = [...$("aspect").options].find((option) => option.dataset.size === size);
  if (size && shape) $("aspect").value = shape.value;
  seedIsDrawn = false;
  setReferences(request.references);
  complain(null);
  summarize();
  $("prompt").focus();
}

// Whether the server would take a request now.
export function setReady(value = isReady) {
  isReady = value;
  $("submit").disabled = isSending || !isReady;
}

// Returns the new job and the request that it came of, or null after a refusal, which is then on the page.
export async function submit() {
  const request = read();
  complain(null);
  if (!request.fields.prompt.trim()) {
    complain(null, { text: "Describe the clip first: what is seen, and what is heard.", field: "prompt" });
    return null;
  }
  isSending = true;
  setReady();
  try {
    const job = await callJson("v1/videos", { method: "POST", body: toForm(request) });
    if (!request.fields.seed) request.fields.seed = String(job.seed);
    if (seedIsDrawn) drawSeed(); // the next clip is another one
    return { job, request };
  } catch (error) {
    complain(error, complaint(error, sent(request)));
    return null;
  } finally {
    isSending = false;
    setReady();
  }
}

// Shows what is wrong, and goes to the field it is about.
export function complain(error, said = error && complaint(error)) {
  for (const marked of document.querySelectorAll("[aria-invalid]")) {
    marked.removeAttribute("aria-invalid");
    if (marked.getAttribute("aria-describedby") === "problem") marked.removeAttribute("aria-describedby");
  }
  $("problem").textContent = said ? said.text : "";
  mark((said && said.bad) || []);
  isKeyAsked = error instanceof ServerError && error.status === 401;
  if (isKeyAsked) $("key-row").hidden = false;
  const field = said && said.field && $(said.field);
  if (!field) return;
  if ($("advanced").contains(field)) $("advanced").open = true;
  field.setAttribute("aria-invalid", "true");
  if (!field.hasAttribute("aria-describedby")) field.setAttribute("aria-describedby", "problem");
  field.focus();
}

// The server has answered: it asks for no other key, and a refusal of something else stays.
export function letIn() {
  if (isKeyAsked) complain(null);
}

export async function describeModel() {
  const { data } = await callJson("v1/models");
  const { limits, id } = data[0];
  $("model").textContent = id;
  const known = new Set([...$("aspect").options].map((option) => option.value));
  for (const ratio of limits.aspect_ratios.filter((each) => !known.has(each))) {
    const option = new Option(`${ratio} (${limits.canvases[ratio].replace("x", " × ")})`, ratio);
    option.dataset.size = limits.canvases[ratio];
    $("aspect").append(option);
  }
  const round = (seconds) => Math.round(seconds * 100) / 100;
  $("seconds").placeholder = `${round(limits.min_seconds)} to ${round(limits.max_seconds)}`;
  $("steps").placeholder = limits.default_num_inference_steps;
  $("prompt").maxLength = limits.max_prompt_chars;
  allowTasks(limits.tasks);
}

export function prepare({ onSubmit, onKey }) {
  $("form").onsubmit = async (event) => {
    event.preventDefault();
    if ($("submit").disabled) return;
    const made = await submit();
    if (made) {
      announce("Accepted");
      onSubmit(made);
    }
  };
  $("form").onkeydown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
  };
  $("draw").onclick = drawSeed;
  $("seed").oninput = () => {
    seedIsDrawn = false;
    summarize();
  };
  $("key").onchange = () => {
    key.set($("key").value.trim());
    onKey();
  };
  drawSeed();
}
