// A sound or a video that the clip keeps: its role, the part that is made anew, and the fields it is sent in.

import { element } from "./dom.js";

export const LOCKS = { audio: "soundtrack", video: "footage" }; // by kind
export const LOCK_WORDS = { soundtrack: "Keep as sound", footage: "Keep as picture" };
const KEPT = { soundtrack: "the sound is kept", footage: "the picture is kept" };

export const isLock = ({ role }) => role in LOCK_WORDS;

// "the sound is kept, 1 to 2 s of it made anew"
export function keptWords(references) {
  return references.filter(isLock).map(({ role, from, to }) => {
    if (!from && !to) return KEPT[role];
    return `${KEPT[role]}, but for ${from || 0} s to ${to ? `${to} s` : "the end"}`;
  });
}

// [name, value] of the times of all locks, in seconds of the clip.
export function lockFields(references) {
  const times = ({ role, from, to }) => [
    [`${role}_start_time_seconds`, from],
    [`${role}_end_time_seconds`, to],
  ];
  return references.filter(isLock).flatMap(times).filter(([, value]) => value);
}

// Two fields for the part to make anew; empty is nothing of it.
export function windowInputs(each, onChange) {
  const input = (name, placeholder, label) => {
    const node = element("input", { className: "time", inputMode: "decimal", placeholder, value: each[name] || "" });
    node.setAttribute("aria-label", `${label} of ${each.name}, in seconds`);
    node.oninput = () => {
      each[name] = node.value.trim().replace(",", ".");
      onChange();
    };
    return node;
  };
  const from = input("from", "from", "Make anew from this time");
  const to = input("to", "to", "Make anew up to this time");
  return element("p", { className: "window quiet" }, "make anew ", from, " – ", to, " s");
}
