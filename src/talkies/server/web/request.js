// One request of the page: {fields: {name: text}, references: [{name, kind, role, file}]} -> a form, curl, Python.

import { isLock, lockFields } from "./locks.js";

// What is kept goes with any task.
export function taskOf(references) {
  const followed = references.filter((reference) => !isLock(reference));
  if (!followed.length) return "t2va";
  return followed.some((reference) => reference.role !== "reference") ? "fl2va" : "ref2va";
}

// References in the order in which they are sent: the first frame before the last, and last of all what is kept.
export function sent(request) {
  const place = ({ role }) => (role === "last" ? 1 : isLock({ role }) ? 2 : 0);
  return [...request.references].sort((a, b) => place(a) - place(b));
}

const fieldOf = (reference) => (isLock(reference) ? reference.role : "input_references");

// All text fields, with what the references make of the request.
function plain(request) {
  const fields = Object.entries(request.fields).filter(([, value]) => value !== "");
  fields.push(...lockFields(request.references));
  const task = taskOf(request.references);
  if (task === "t2va") return fields;
  fields.push(["task", task]);
  if (task === "fl2va") {
    const frames = sent(request).filter((reference) => !isLock(reference));
    const places = frames.map((reference) => (reference.role === "first" ? 0 : -1));
    fields.push(["frame_indices", JSON.stringify(places)]);
  }
  return fields;
}

export function toForm(request) {
  const form = new FormData();
  for (const [name, value] of plain(request)) {
    // A form turns a line's end into CR LF; a prompt is taken as it was written.
    if (name === "prompt") form.append("extra_body", JSON.stringify({ prompt: value }));
    else form.append(name, value);
  }
  for (const each of sent(request)) form.append(fieldOf(each), each.file, each.name);
  return form;
}

// A job that this browser did not make: what its own facts say.
export function ofJob(job) {
  const fields = {
    prompt: job.prompt,
    seconds: job.seconds,
    n: String(job.num_outputs),
    seed: String(job.seed),
    num_inference_steps: String(job.num_inference_steps),
  };
  return { fields: { ...fields, size: job.size }, references: [] };
}

const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

// A file name inside -F has a quoting of its own within the shell's.
const filePart = (each) => `${fieldOf(each)}=@"${each.name.replace(/["\\]/g, "\\$&")}"`;

export function toCurl(request, url, withKey) {
  const lines = [`curl -sS ${shell(url)}`];
  if (withKey) lines.push(`-H "Authorization: Bearer $TALKIES_API_KEY"`);
  for (const [name, value] of plain(request)) lines.push(`--form-string ${shell(`${name}=${value}`)}`);
  for (const each of sent(request)) lines.push(`-F ${shell(filePart(each))}`);
  return lines.join(" \\\n  ");
}

// JSON text in double quotes is Python text, too: both know the same escapes, and lone surrogates never get here.
const python = (text) => JSON.stringify(text);

export function toPython(request, url, withKey) {
  const fields = plain(request).map(([name, value]) => `    ${python(name)}: (None, ${python(value)}),`);
  const files = sent(request).map(
    (each) => `parts.append((${python(fieldOf(each))}, (${python(each.name)}, open(${python(each.name)}, "rb"))))`,
  );
  const headers = withKey ? `headers={"Authorization": "Bearer " + os.environ["TALKIES_API_KEY"]}, ` : "";
  return [
    ...(withKey ? ["import os"] : []),
    "import time",
    "",
    "import httpx",
    "",
    "fields = {",
    ...fields,
    "}",
    "parts = list(fields.items())",
    ...files,
    `with httpx.Client(${headers}timeout=60) as http:`,
    `    url = ${python(url)}`,
    "    job = http.post(url, files=parts).raise_for_status().json()",
    '    while job["status"] not in ("completed", "failed"):',
    "        time.sleep(1)",
    `        job = http.get(f"{url}/{job['id']}").raise_for_status().json()`,
    '    for i in range(job["num_outputs"]):',
    `        clip = http.get(f"{url}/{job['id']}/content?variant={i}").raise_for_status()`,
    `        open(f"clip-{i}.mp4", "wb").write(clip.content)`,
    "",
  ].join("\n");
}
