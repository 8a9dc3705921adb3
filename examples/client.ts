// A client of a talkies server, without packages: make a job, ask for it until it is over, download its clip.
//
//   talkies serve
//   node --experimental-strip-types examples/client.ts "a red ball bounces with a bell sound" clip.mp4 http://127.0.0.1:8000
//
// With keys, set TALKIES_API_KEY.
import { writeFile } from "node:fs/promises";

interface Job {
  id: string;
  status: "queued" | "in_progress" | "completed" | "failed";
  progress: number;
  error: { code: string; message: string; param: string | null } | null;
}

const [prompt = "a red ball bounces with a bell sound", output = "clip.mp4", base = "http://127.0.0.1:8000"] =
  process.argv.slice(2);
const key = process.env.TALKIES_API_KEY;
const headers: Record<string, string> = key ? { Authorization: `Bearer ${key}` } : {};

async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  const answer = await fetch(base + path, { ...init, headers: { ...headers, ...init.headers } });
  if (!answer.ok) throw new Error(((await answer.json()) as { error: { message: string } }).error.message);
  return answer;
}

const body = JSON.stringify({ prompt });
let answer = await ask("/v1/videos", { method: "POST", body, headers: { "Content-Type": "application/json" } });
let job = (await answer.json()) as Job;
while (job.status === "queued" || job.status === "in_progress") {
  const wait = Number(answer.headers.get("openai-poll-after-ms") ?? 500); // the server says when to ask again
  await new Promise((resolve) => setTimeout(resolve, wait));
  answer = await ask(`/v1/videos/${job.id}`);
  job = (await answer.json()) as Job;
  console.error(`${job.status}: ${job.progress} %`);
}
if (job.status === "failed") throw new Error(job.error?.message);
await writeFile(output, Buffer.from(await (await ask(`/v1/videos/${job.id}/content`)).arrayBuffer()));
console.log(job.id);
