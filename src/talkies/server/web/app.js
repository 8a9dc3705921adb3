// The page: a form, a player, and the list of clips with live progress. No framework, no outside asset.
import { ServerError, call, events, key } from "./stream.js";

const $ = (id) => document.getElementById(id);
const MAX_STREAMS = 2; // a browser opens six connections per host; most must stay free for everything else
const POLL_MS = 2000;
const jobs = new Map(); // id -> {job, row, preview}
const streams = new Map(); // id -> AbortController
let files = [];
let oldest = null;
let playing = null;

function element(tag, attributes = {}, ...children) {
  const node = Object.assign(document.createElement(tag), attributes);
  node.append(...children);
  return node;
}

function drawSeed() {
  $("seed").value = Math.floor(Math.random() * 2 ** 31);
}

// ---- references

function addFiles(list) {
  files = [...files, ...list];
  showFiles();
}

function showFiles() {
  $("references").replaceChildren(
    ...files.map((file, i) => {
      const remove = element("button", { type: "button", textContent: "Remove" });
      remove.setAttribute("aria-label", `Remove ${file.name}`);
      remove.onclick = () => {
        files.splice(i, 1);
        showFiles();
        $("files").focus();
      };
      return element("li", {}, `${file.name} (${Math.ceil(file.size / 1024)} KiB)`, remove);
    }),
  );
}

// ---- submit

async function submit() {
  const form = new FormData();
  const add = (name, value) => value !== "" && form.append(name, value);
  add("prompt", $("prompt").value);
  add("task", $("task").value);
  add("aspect_ratio", $("aspect").value);
  if ($("seconds").value) add("extra_params", JSON.stringify({ duration: Number($("seconds").value) }));
  add("num_inference_steps", $("steps").value);
  add("quality", $("quality").value);
  add("seed", $("seed").value);
  for (const file of files) form.append("input_references", file);
  $("submit").disabled = true;
  $("problem").textContent = "";
  try {
    const job = await (await call("/v1/videos", { method: "POST", body: form })).json();
    show(job, true);
    follow();
    $("status").textContent = `accepted: ${job.size}, ${job.seconds} s, seed ${job.seed}`;
  } catch (error) {
    complain(error);
  } finally {
    $("submit").disabled = false;
  }
}

function complain(error) {
  if (error instanceof ServerError && error.status === 401) {
    $("key-row").hidden = false;
    $("key").focus();
  }
  const where = error.param ? `${error.param}: ` : "";
  $("problem").textContent = error.message.startsWith(where) ? error.message : where + error.message;
}

// ---- the list

function show(job, atTop) {
  let entry = jobs.get(job.id);
  if (!entry) {
    entry = makeEntry(job);
    jobs.set(job.id, entry);
    atTop ? $("jobs").prepend(entry.row) : $("jobs").append(entry.row);
  }
  entry.job = job;
  const ended = job.status === "completed" || job.status === "failed";
  entry.row.dataset.status = job.status;
  entry.prompt.textContent = job.prompt;
  entry.bar.value = job.progress;
  entry.bar.hidden = ended;
  entry.state.textContent = describe(job);
  entry.facts.textContent = [
    job.task, job.size, `${job.seconds} s`, `seed ${job.seed}`, `${job.num_forwards} forwards`, ...job.warnings,
  ].join(" · ");
  entry.cancel.textContent = ended ? "Delete" : "Cancel";
  entry.play.hidden = entry.download.hidden = job.status !== "completed";
  entry.again.hidden = !ended;
  if (job.status === "completed" && !entry.pictured) {
    entry.pictured = true;
    content(job, "thumbnail").then((url) => (entry.preview.src = url)).catch(() => (entry.pictured = false));
  }
}

function makeEntry(job) {
  const button = (name, action) => {
    const node = element("button", { type: "button", textContent: name, className: name.toLowerCase() });
    node.onclick = () => action(jobs.get(job.id).job).catch(complain);
    return node;
  };
  const entry = {
    preview: element("img", { alt: "" }),
    prompt: element("p", { className: "prompt" }),
    state: element("p", { className: "state" }),
    facts: element("p", { className: "quiet" }),
    bar: element("progress", { max: 100 }),
    play: button("Play", play),
    download: button("Download", download),
    again: button("Again", again),
    cancel: button("Cancel", cancel),
  };
  entry.bar.setAttribute("aria-label", "Progress");
  entry.again.title = "Again with these settings";
  const what = element("div", { className: "what" }, entry.prompt, entry.state, entry.bar, entry.facts);
  const actions = element("div", { className: "actions" }, entry.play, entry.download, entry.again, entry.cancel);
  entry.row = element("li", { id: job.id }, entry.preview, what, actions);
  return entry;
}

function describe(job) {
  const eta = job.eta_s === null ? "" : `, about ${Math.max(1, Math.round(job.eta_s))} s left`;
  if (job.status === "failed") return `failed: ${job.error.message}`;
  if (job.status === "completed") return `finished in ${job.inference_time_s ?? "?"} s`;
  if (job.paused) return `paused at ${job.progress} %${eta}`;
  if (job.status === "queued") return job.queue_position ? `waiting, place ${job.queue_position}${eta}` : "waiting";
  const step = job.num_steps ? ` ${job.step}/${job.num_steps}` : "";
  return `${job.stage ?? "running"}${step}, ${job.progress} %${eta}`;
}

async function content(job, variant) {
  const path = `/v1/videos/${job.id}/content${variant ? `?variant=${variant}` : ""}`;
  if (!key.get()) return path; // the browser itself asks for ranges
  return URL.createObjectURL(await (await call(path)).blob());
}

async function play(job) {
  const player = $("player");
  if (player.src.startsWith("blob:")) URL.revokeObjectURL(player.src);
  player.src = await content(job);
  playing = job.id;
  $("playing").textContent = job.prompt;
  player.scrollIntoView({ block: "nearest" });
  await player.play();
}

async function download(job) {
  element("a", { href: await content(job), download: `${job.id}.mp4` }).click();
}

async function again(job) {
  $("prompt").value = job.prompt;
  $("seed").value = job.seed;
  $("steps").value = job.num_inference_steps;
  $("seconds").value = job.seconds;
  $("quality").value = job.quality;
  $("task").value = job.task === "t2va" ? "" : job.task;
  const ratio = [...$("aspect").options].find((o) => o.dataset.size === job.size);
  $("aspect").value = ratio ? ratio.value : "";
  $("status").textContent = job.task === "t2va" ? "settings copied" : "settings copied; add the references again";
  $("prompt").focus();
}

async function cancel(job) {
  await call(`/v1/videos/${job.id}`, { method: "DELETE" });
  forget(job.id);
}

function forget(id) {
  const entry = jobs.get(id);
  if (!entry) return;
  streams.get(id)?.abort();
  streams.delete(id);
  jobs.delete(id);
  entry.row.remove();
  if (playing === id) $("player").removeAttribute("src");
}

// ---- live

function follow() {
  const open = [...jobs.values()].map((entry) => entry.job).filter((job) => ["queued", "in_progress"].includes(job.status));
  open.sort((a, b) => (a.status === b.status ? a.created_at - b.created_at : a.status === "in_progress" ? -1 : 1));
  const wanted = new Set(open.slice(0, MAX_STREAMS).map((job) => job.id));
  for (const [id, controller] of streams) {
    if (!wanted.has(id)) {
      controller.abort();
      streams.delete(id);
    }
  }
  for (const id of wanted) if (!streams.has(id)) watch(id);
}

async function watch(id) {
  const controller = new AbortController();
  streams.set(id, controller);
  try {
    await events(`/v1/videos/${id}/events`, controller.signal, (name, data) => {
      const entry = jobs.get(id);
      if (!entry) return;
      if (name === "preview") entry.preview.src = `data:image/jpeg;base64,${data.jpeg}`;
      else if (name === "deleted") forget(id);
      else show({ ...entry.job, ...data });
    });
  } catch (error) {
    if (error.name !== "AbortError") $("status").textContent = "connection lost, trying again";
  } finally {
    if (streams.get(id) === controller) streams.delete(id);
  }
}

async function refresh() {
  try {
    const page = await (await call("/v1/videos?limit=20")).json();
    for (const job of [...page.data].reverse()) {
      // A stream knows more than a poll that was answered a moment ago.
      if (!streams.has(job.id)) show(job, true);
    }
    if (oldest === null && page.data.length) {
      oldest = page.last_id;
      $("more").hidden = !page.has_more;
    }
    for (const [id, entry] of jobs) {
      const ended = ["completed", "failed"].includes(entry.job.status);
      if (!ended && !streams.has(id) && !page.data.some((job) => job.id === id)) await recheck(id);
    }
    follow();
  } catch (error) {
    if (error instanceof ServerError) complain(error);
    else $("status").textContent = "the server cannot be reached, trying again";
  }
}

async function recheck(id) {
  try {
    show(await (await call(`/v1/videos/${id}`)).json());
  } catch (error) {
    if (error.status === 404 || error.status === 410) forget(id);
  }
}

async function older() {
  const page = await (await call(`/v1/videos?limit=20&after=${encodeURIComponent(oldest)}`)).json();
  page.data.forEach((job) => show(job, false));
  oldest = page.last_id ?? oldest;
  $("more").hidden = !page.has_more;
}

async function describeModel() {
  const { data } = await (await call("/v1/models")).json();
  const limits = data[0].limits;
  $("model").textContent = data[0].id;
  for (const task of limits.tasks) $("task").append(new Option(task, task));
  for (const ratio of limits.aspect_ratios) {
    const option = new Option(ratio === limits.default_aspect ? `${ratio} (default)` : ratio, ratio);
    option.dataset.size = limits.canvases[ratio];
    option.title = limits.canvases[ratio];
    $("aspect").append(option);
  }
  $("seconds").min = limits.min_seconds;
  $("seconds").max = limits.max_seconds;
  $("steps").placeholder = limits.default_num_inference_steps;
  $("prompt").maxLength = limits.max_prompt_chars;
}

async function begin() {
  try {
    if ($("task").options.length === 1) await describeModel();
    $("problem").textContent = "";
  } catch (error) {
    complain(error);
  }
  await refresh();
}

$("form").onsubmit = (event) => {
  event.preventDefault();
  submit();
};
$("form").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
};
$("draw").onclick = drawSeed;
$("files").onchange = () => {
  addFiles($("files").files);
  $("files").value = "";
};
$("more").onclick = () => older().catch(complain);
$("key").onchange = () => {
  key.set($("key").value.trim());
  begin();
};
for (const name of ["dragover", "dragenter"]) {
  $("drop").addEventListener(name, (event) => {
    event.preventDefault();
    $("drop").classList.add("over");
  });
}
$("drop").addEventListener("dragleave", () => $("drop").classList.remove("over"));
$("drop").addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  addFiles(event.dataTransfer.files);
});
drawSeed();
begin();
setInterval(() => document.hidden || refresh(), POLL_MS);
