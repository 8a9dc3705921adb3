// The official Node client, unchanged, against a live server:
//   node openai_node.mjs FOLDER_WITH_NODE_MODULES BASE_URL WEBHOOK_URL WEBHOOK_SECRET
// Create, poll, events, download, remix, cancel, delete, errors, webhook. Prints one JSON object.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";

const [, , modules, base, hook, secret] = process.argv;
const OpenAI = createRequire(join(modules, "package.json"))("openai").default;
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "any", webhookSecret: secret });
const told = {};

async function poll(id) {
  for (;;) {
    const { data: video, response } = await client.videos.retrieve(id).withResponse();
    if (video.status === "completed" || video.status === "failed") return video;
    const wait = Number(response.headers.get("openai-poll-after-ms"));
    assert.ok(wait > 0);
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

async function events(id) {
  const answer = await fetch(`${base}/v1/videos/${id}/events`);
  const names = [];
  let rest = "";
  for await (const chunk of answer.body.pipeThrough(new TextDecoderStream())) {
    rest += chunk;
    const lines = rest.split("\n");
    rest = lines.pop();
    names.push(...lines.filter((line) => line.startsWith("event: ")).map((line) => line.slice(7)));
  }
  return names;
}

const received = [];
let arrived;
const delivery = new Promise((resolve) => (arrived = resolve));
const receiver = createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    received.push({ body: Buffer.concat(parts).toString(), headers: new Headers(request.headers) });
    response.writeHead(204).end();
    arrived();
  });
});
await new Promise((resolve) => receiver.listen(new URL(hook).port, "127.0.0.1", resolve));

const made = await client.videos.create({ prompt: "a red ball", seconds: "2", size: "112x64", webhook_url: hook, seed: 7 });
const seen = await events(made.id);
assert.equal(seen.at(-1), "done");
const video = await poll(made.id);
assert.deepEqual([video.status, video.progress, video.size], ["completed", 100, "112x64"]);
told.events = [...new Set(seen)].sort();
told.bytes = (await (await client.videos.downloadContent(video.id)).arrayBuffer()).byteLength;
const thumbnail = await client.videos.downloadContent(video.id, { variant: "thumbnail" });
assert.equal(thumbnail.headers.get("content-type"), "image/webp");

const remix = await client.videos.remix(video.id, { prompt: "a blue ball" });
assert.deepEqual([remix.remixed_from_video_id, remix.prompt, remix.seed], [video.id, "a blue ball", 7]);
told.remix = (await poll(remix.id)).status;

const slow = await client.videos.create({ prompt: "a slow ball" });
const cancelled = await client.post(`/videos/${slow.id}/cancel`);
told.cancelled = [cancelled.status, cancelled.error.code];

const ids = [];
for await (const one of client.videos.list({ limit: 2 })) ids.push(one.id);
assert.deepEqual(ids, [slow.id, remix.id, video.id]);
const deleted = await client.videos.delete(slow.id);
assert.deepEqual([deleted.deleted, deleted.object], [true, "video.deleted"]);
await assert.rejects(client.videos.retrieve(slow.id), OpenAI.NotFoundError);
await assert.rejects(client.videos.create({ prompt: "a ball", seconds: "99" }), (error) => {
  told.error = [error.status, error.type, error.code, error.param];
  return error instanceof OpenAI.BadRequestError;
});
await assert.rejects(client.videos.extend({ prompt: "more", seconds: "4", video: { id: video.id } }), (error) => {
  told.absent = [error.status, error.code];
  return error instanceof OpenAI.InternalServerError;
});

await delivery;
const event = await client.webhooks.unwrap(received[0].body, received[0].headers);
told.webhook = [event.type, event.data.id === video.id];
await assert.rejects(client.webhooks.unwrap(received[0].body + " ", received[0].headers));
receiver.close();
console.log(JSON.stringify(told));
