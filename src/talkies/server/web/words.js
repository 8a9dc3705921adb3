// What the server says, in the words of the page.

import { isLock } from "./locks.js";

export const TASKS = {
  t2va: "Text to clip",
  fl2va: "From first or last frame",
  ref2va: "From references",
};

const LOADING = [
  [/^weights/, "Reading the weights."],
  [/^text encoder/, "Reading the text encoder."],
  [/^audio/, "Reading the sound decoder."],
  [/^ranks/, "Starting one process a device."],
  [/^warm-up/, "Warming up."],
];

// What /health says while it is not ready: "engine is loading: audio VAE (wait)".
export function loading(message) {
  const stage = message.replace(/^[^:]*(loading|starting)\b:?\s*/, "").replace(/\s*\([^()]*\)$/, "");
  const known = LOADING.find(([pattern]) => pattern.test(stage));
  return known ? known[1] : stage ? sentence(stage) : "One moment.";
}

const STAGES = {
  prepare: "Getting ready",
  encode: "Reading the prompt",
  denoise: "Making picture and sound",
  decode: "Writing the clip",
  mux: "Writing the clip",
  restarting: "The engine is starting again",
};

export function taskWords(task, roles) {
  if (task !== "fl2va") return TASKS[task];
  if (roles.length === 2) return "From the first frame to the last";
  return roles[0] === "first" ? "Goes on from the first frame" : "Ends with the last frame";
}

// Fields as the server calls them -> [what the page calls them, the element to go to].
const FIELDS = {
  prompt: ["The prompt", "prompt"],
  aspect_ratio: ["Shape", "aspect"],
  size: ["Shape", "aspect"],
  width: ["Shape", "aspect"],
  height: ["Shape", "aspect"],
  seconds: ["Length in seconds", "seconds"],
  duration: ["Length in seconds", "seconds"],
  num_frames: ["Length in frames", "seconds"],
  n: ["Number of clips", "outputs"],
  num_outputs_per_prompt: ["Number of clips", "outputs"],
  seed: ["Seed", "seed"],
  num_inference_steps: ["Steps", "steps"],
  flow_shift: ["Shift", "shift"],
  fit: ["Fit", "fit"],
  quality: ["Quality", "quality"],
  input_references: ["References", "files"],
  input_reference: ["References", "files"],
  conditions: ["References", "files"],
  frame_indices: ["References", "files"],
  soundtrack: ["The sound to keep", "files"],
  footage: ["The picture to keep", "files"],
  task: ["References", "files"],
};

const JOB_ERRORS = {
  cancelled: "You stopped this clip.",
  out_of_memory: "There was not enough memory for this clip. Try a shorter one, or fewer at a time.",
  worker_died: "The engine stopped while it made this clip. Making it again usually works.",
  worker_hung: "The engine got stuck on this clip. Making it again usually works.",
  non_finite: "The numbers of this clip went wrong. Another seed usually works.",
  output_failed: "The clip could not be saved. The server's disk may be full.",
  server_restarted: "The server stopped too often while it made this clip.",
};

export function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const isEnded = (job) => job.status === "completed" || job.status === "failed";

export function describe(job) {
  const left = job.eta_s === null ? "" : `, about ${duration(job.eta_s)} left`;
  if (job.status === "failed") return JOB_ERRORS[job.error.code] || sentence(job.error.message);
  if (job.status === "completed") {
    return job.inference_time_s === null ? "Finished" : `Finished in ${duration(job.inference_time_s)}`;
  }
  if (job.paused) return `Paused for another clip${left}`;
  if (job.status === "queued") {
    if (!job.queue_position) return "Waiting for its turn";
    const place = job.queue_position === 1 ? "Next in line" : `Number ${job.queue_position} in line`;
    return job.eta_s === null ? place : `${place}, ready in about ${duration(job.eta_s)}`;
  }
  const step = job.stage === "denoise" && job.num_steps ? `, step ${job.step} of ${job.num_steps}` : "";
  return `${STAGES[job.stage] || "Starting"}${step}${left}`;
}

// For a card: as short as it can be.
export function brief(job) {
  if (job.status === "failed") return job.error.code === "cancelled" ? "Stopped" : "Failed";
  if (job.status === "queued") return job.paused ? "Paused" : job.queue_position ? `Number ${job.queue_position} in line` : "Waiting";
  if (job.status === "in_progress") return `${job.progress} %`;
  const length = `${Math.round(Number(job.seconds) * 10) / 10} s`;
  return job.num_outputs > 1 ? `${job.num_outputs} × ${length}` : length;
}

// For a failed job whose error has words of its own: what the server said beside them.
export function detail(job) {
  return job.error && job.error.code in JOB_ERRORS && job.error.code !== "cancelled" ? job.error.message : "";
}

export function facts(job) {
  const [width, height] = job.size.split("x");
  const parts = [TASKS[job.task] || job.task, `${width} × ${height}`, `${trimmed(job.seconds)} s`];
  parts.push(`${job.num_inference_steps} steps`, job.num_outputs > 1 ? `seeds from ${job.seed}` : `seed ${job.seed}`);
  return parts.join(" · ");
}

const trimmed = (seconds) => String(Math.round(Number(seconds) * 100) / 100);

export function sentence(text) {
  const hint = text.match(/^(.*\S) \(([^()]+)\)$/s); // the server's "message (hint)"
  const parts = hint ? [hint[1], hint[2]] : [text];
  return parts.map((part) => part[0].toUpperCase() + part.slice(1).replace(/\.$/, "") + ".").join(" ");
}

// An error of a call -> {text, field, bad}: a sentence, the id of the element it is about, and which of the
// ``references``, in the order of sending: the server counts files by kind, the page knows their names.
export function complaint(error, references = []) {
  if (error.status === undefined) return { text: "The server cannot be reached. Is it running?", field: null };
  if (error.status === 401) return { text: "This server asks for an API key.", field: "key" };
  if (error.status === 429) {
    const when = error.retryAfter ? ` Try again in ${duration(error.retryAfter)}.` : " Try again later.";
    return { text: `The server has enough to do.${when}`, field: null };
  }
  if (error.status === 503) return { text: "The model is not ready yet. Try again in a moment.", field: null };
  const name = (error.param || "").replace(/\[\d+\].*$/, "").split(".").pop();
  const [label, field] = FIELDS[name] || ["", null];
  const range = error.message.match(/^[\w.]+=(\S+?),? (?:is )?outside (-?[\d.]+?)\.\.(-?[\d.]+)/);
  if (range && label) return { text: `${label} must be ${range[2]} to ${range[3]}; you wrote ${range[1]}.`, field };
  const bad = references.filter((each) => isLock(each) && error.param && error.param.startsWith(each.role));
  const plain = error.message
    .replace(/^[\w.]+=[^\s:]+: /, "") // num_frames=158: this clip needs ..
    .replace(/^[\w.]+=('?)([^'\s,]+)\1/, (found, _, value) => (label ? `${label} “${value}”` : found));
  const text = plain.replace(/\b(image|video|audio) (\d+)\b/g, (found, kind, number) => {
    const followed = references.filter((each) => !isLock(each) && each.kind === kind);
    const named = followed[number - 1];
    if (named) bad.push(named);
    return named ? `“${named.name}”` : found;
  });
  return { bad, field, text: sentence(text.replace(/\b(t2va|fl2va|ref2va)\b/g, (task) => `“${TASKS[task]}”`)) };
}
