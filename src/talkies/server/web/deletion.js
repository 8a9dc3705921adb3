// Deleting with second thoughts: the clip leaves the page at once and the server a few seconds later.

import { $, announce, button, element } from "./dom.js";
import { dropRequest, setFavourite } from "./keep.js";
import { forget, hide, unhide } from "./jobs.js";
import { call } from "./stream.js";

const UNDO_MS = 8000;
let pending = null; // {id, timer}; one at a time: the next deletion makes the last one final

// ``back`` gets the focus when the offer ends: somebody with a keyboard must not fall off the page. ``undone`` puts the
// clip back, ``fail`` hears why the server would not let it go.
export function remove(job, { back, fail, undone }) {
  settle();
  hide(job.id);
  pending = { id: job.id, fail, timer: setTimeout(() => settle(back), UNDO_MS) };
  const undo = button("Undo", () => {
    clearTimeout(pending.timer);
    const { id } = pending;
    close();
    unhide(id);
    announce("The clip is back");
    undone();
  });
  $("toast").replaceChildren(element("p", { textContent: "Clip deleted" }), undo);
  $("toast").hidden = false;
  undo.focus({ preventScroll: true });
}

function close(back) {
  const hadFocus = $("toast").contains(document.activeElement);
  pending = null;
  $("toast").hidden = true;
  $("toast").replaceChildren();
  if (hadFocus && back) back();
}

async function settle(back) {
  if (!pending) return;
  const { id, timer, fail } = pending;
  clearTimeout(timer);
  close(back);
  try {
    // keepalive: the request outlives the page that is being left.
    await call(`v1/videos/${id}`, { method: "DELETE", keepalive: true });
  } catch (error) {
    if (error.status !== 404 && error.status !== 410) {
      unhide(id);
      fail(error);
      return;
    }
  }
  forget(id);
  setFavourite(id, false);
  dropRequest(id);
}

addEventListener("pagehide", () => settle());
