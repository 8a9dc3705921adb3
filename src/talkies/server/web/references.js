// Pictures, videos and sounds that the clip follows: thumbnails, roles, order, and their names in the prompt.

import { $, announce, button, element } from "./dom.js";
import { isLock, keptWords, LOCKS, LOCK_WORDS, windowInputs } from "./locks.js";
import { taskOf } from "./request.js";
import { TASKS, taskWords } from "./words.js";

const ROLES = { first: "First frame", last: "Last frame", reference: "Reference", ...LOCK_WORDS };
const LABELS = { image: "Picture", video: "Video", audio: "Audio" };
const SUFFIXES = { heic: "image", avif: "image", mkv: "video", mov: "video", flac: "audio", opus: "audio" };
let items = []; // {name, file, kind, role, url}, of what is kept {from, to}, and whether an error is about it: bad
let tasks = Object.keys(TASKS);
let chosenByHand = false;

export const references = () => items.map(({ url, bad, ...reference }) => reference);

export function allowTasks(names) {
  tasks = names;
  render();
}

export function addFiles(files) {
  items.push(...[...files].map((file) => item({ name: file.name, file, kind: kindOf(file), role: "reference" })));
  assign();
}

export function setReferences(list) {
  items.forEach((each) => URL.revokeObjectURL(each.url));
  items = list.map(item);
  chosenByHand = items.length > 0;
  render();
}

function item(reference) {
  return { ...reference, url: URL.createObjectURL(reference.file) };
}

function kindOf(file) {
  const [kind] = file.type.split("/");
  return kind in LABELS ? kind : SUFFIXES[file.name.split(".").pop().toLowerCase()] || "video";
}

const followed = () => items.filter((each) => !isLock(each));
const canBeFrames = () =>
  tasks.includes("fl2va") && followed().length <= 2 && followed().every((each) => each.kind === "image");

// One or two pictures are most often frames; anything else can only be references. Who chose keeps the choice.
function assign() {
  const keep = chosenByHand && items.some((each) => each.role === "reference");
  const frames = canBeFrames() && !(keep && tasks.includes("ref2va"));
  const others = followed();
  if (!frames) others.forEach((each) => (each.role = "reference"));
  else if (others.length === 1) others[0].role = chosenByHand && others[0].role === "last" ? "last" : "first";
  else others.forEach((each, i) => (each.role = i ? "last" : "first"));
  render();
}

// Puts a frame around the files that an error is about, which stays when the cards are drawn again.
export function mark(bad) {
  const files = bad.map((reference) => reference.file);
  items.forEach((each) => (each.bad = files.includes(each.file)));
  [...$("references").children].forEach((node, i) => (node.dataset.bad = items[i].bad));
}

function choose(each, role) {
  if (role in LOCK_WORDS) {
    // One of each: another one of the role goes back to being followed.
    items.forEach((one) => (one.role = one === each ? role : one.role === role ? "reference" : one.role));
    assign();
    return;
  }
  chosenByHand = true;
  const others = followed().filter((one) => one !== each);
  each.role = role;
  if (role === "reference") others.forEach((one) => (one.role = "reference"));
  else others.forEach((one) => (one.role = role === "first" ? "last" : "first"));
  render();
}

function move(from, to) {
  const [moved] = items.splice(from, 1);
  items.splice(to, 0, moved);
  render();
  announce(`${moved.name} is now number ${to + 1}`);
  focusOn(to, to < from ? ".earlier" : ".later");
}

function remove(index) {
  const [removed] = items.splice(index, 1);
  URL.revokeObjectURL(removed.url);
  if (!items.length) chosenByHand = false;
  assign();
  announce(`${removed.name} removed`);
  if (items.length) focusOn(Math.min(index, items.length - 1), ".remove");
  else $("files").focus();
}

function focusOn(index, selector) {
  const card = $("references").children[index];
  (card.querySelector(`${selector}:not(:disabled)`) || card.querySelector(".remove")).focus();
}

// <Picture 1>, as the model was taught to read it. Soundtracks of videos share the numbers of sounds, and a page cannot
// tell whether a video has one: a sound after a video has no name that is sure.
function labelOf(index) {
  const { kind } = items[index];
  const before = items.slice(0, index).filter((each) => !isLock(each));
  if (kind === "audio" && before.some((each) => each.kind === "video")) return null;
  return `<${LABELS[kind]} ${1 + before.filter((each) => each.kind === kind).length}>`;
}

function render() {
  $("references").replaceChildren(...items.map(card));
  sayTask();
}

function sayTask() {
  const task = taskOf(items);
  const words = [taskWords(task, followed().map((each) => each.role)), ...keptWords(items)];
  $("task").textContent = items.length ? `${words.join(", ")}.` : "";
  if (items.length && !tasks.includes(task)) {
    const can = tasks.map((name) => TASKS[name].toLowerCase()).join(", ");
    $("task").textContent = `“${TASKS[task]}” is not loaded on this server, only: ${can}.`;
  }
}

function card(each, index) {
  const label = each.role === "reference" ? labelOf(index) : null;
  const chip = button(label || "", () => insert(label), { className: "chip", title: "Put this name into the prompt" });
  chip.hidden = !label;
  if (label) chip.setAttribute("aria-label", `Put ${label} into the prompt`);
  const earlier = button("↑", () => move(index, index - 1), { className: "earlier", disabled: index === 0 });
  const later = button("↓", () => move(index, index + 1), { className: "later", disabled: index === items.length - 1 });
  const away = button("Remove", () => remove(index), { className: "remove" });
  earlier.setAttribute("aria-label", `Move ${each.name} earlier`);
  later.setAttribute("aria-label", `Move ${each.name} later`);
  away.setAttribute("aria-label", `Remove ${each.name}`);
  const order = element("span", { className: "order" }, earlier, later);
  order.hidden = items.length < 2;
  const node = element(
    "li",
    { draggable: items.length > 1 },
    thumbnail(each),
    element(
      "div",
      { className: "what" },
      element("p", { className: "name", textContent: each.name }),
      role(each),
      ...(isLock(each) ? [windowInputs(each, sayTask)] : []),
      chip,
    ),
    element("div", { className: "side" }, order, away),
  );
  node.dataset.bad = each.bad === true;
  node.ondragstart = (event) => event.dataTransfer.setData("application/x-reference", String(index));
  node.ondrop = (event) => {
    const from = event.dataTransfer.getData("application/x-reference");
    if (from !== "" && Number(from) !== index) move(Number(from), index);
  };
  return node;
}

function role(each) {
  const names = each.kind === "image" ? (canBeFrames() ? ["first", "last"] : []) : [LOCKS[each.kind]];
  if (names.length === 0) return element("p", { className: "quiet", textContent: ROLES[each.role] });
  if (tasks.includes("ref2va") || each.kind !== "image") names.push("reference");
  const select = element("select", { "aria-label": `Role of ${each.name}` });
  select.append(...names.map((name) => new Option(ROLES[name], name, false, name === each.role)));
  select.onchange = () => {
    choose(each, select.value);
    $("references").children[items.indexOf(each)].querySelector("select").focus();
  };
  return select;
}

function thumbnail(each) {
  const sign = element("span", { className: "thumb", textContent: each.kind === "audio" ? "♪" : "▦", "aria-hidden": "true" });
  if (each.kind === "audio") return sign;
  const picture = element(each.kind === "image" ? "img" : "video", { className: "thumb", src: each.url });
  if (each.kind === "image") picture.alt = "";
  else Object.assign(picture, { muted: true, preload: "metadata", tabIndex: -1 });
  picture.onerror = () => picture.replaceWith(sign); // HEIC, or a codec that only the server knows
  return picture;
}

function insert(label) {
  const area = $("prompt");
  const [start, end] = [area.selectionStart, area.selectionEnd];
  const space = start > 0 && !/\s$/.test(area.value.slice(0, start)) ? " " : "";
  area.setRangeText(`${space}${label} `, start, end, "end");
  area.focus();
}

$("files").onchange = () => {
  addFiles($("files").files);
  $("files").value = "";
};
const isFiles = (event) => event.dataTransfer.types.includes("Files");
for (const name of ["dragover", "dragenter"]) {
  $("drop").addEventListener(name, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", isFiles(event));
  });
}
$("drop").addEventListener("dragleave", () => $("drop").classList.remove("over"));
$("drop").addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  if (isFiles(event)) addFiles(event.dataTransfer.files);
});
