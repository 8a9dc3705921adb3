// One request of the page: {fields: {name: text}, references: [{name, kind, role, file}]} -> a form, curl, Python.

export function taskOf(references) {
  if (!references.length) return "t2va";
  return references.some((reference) => reference.role !== "reference") ? "fl2va" : "ref2va";
}

// References in the order in which they are sent: the first frame before the last.
export function sent(request) {
  const { references } = request;
  if (taskOf(references) !== "fl2va") return references;
  return [...references].sort((a, b) => (a.role === b.role ? 0 : a.role === "first" ? -1 : 1));
}

// All text fields, with what the references make of the request.
function plain(request) {
  const fields = Object.entries(request.fields).filter(([, value]) => value !== "");
  const task = taskOf(request.references);
  if (task === "t2va") return fields;
  fields.push(["task", task]);
  if (task === "fl2va") {
    const places = sent(request).map((reference) => (reference.role === "first" ? 0 : -1));
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
  for (const { file, name } of sent(request)) form.append("input_references", file, name);
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
const filePart = (name) => `input_references=@"${name.replace(/["\\]/g, "\\$&")}"`;

export function toCurl(request, url, withKey) {
  const lines = [`curl -sS ${shell(url)}`];
  if (withKey) lines.push(`-H "Authorization: Bearer $TALKIES_API_KEY"`);
  for (const [name, value] of plain(request)) lines.push(`--form-string ${shell(`${name}=${value}`)}`);
  for (const { name } of sent(request)) lines.push(`-F ${shell(filePart(name))}`);
  return lines.join(" \\\n  ");
}

// JSON text in double quotes is Python text, too: both know the same escapes, and lone surrogates never get here.
const python = (text) => JSON.stringify(text);

export function toPython(request, url, withKey) {
  const fields = plain(request).map(([name, value]) => `    ${python(name)}: (None, ${python(value)}),`);
  const files = sent(request).map(
    ({ name }) => `parts.append(("input_references", (${python(name)}, open(${python(name)}, "rb"))))`,
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
