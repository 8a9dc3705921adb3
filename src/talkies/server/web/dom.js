// Small helpers around the document.

export const $ = (id) => document.getElementById(id);

// Names with a dash become attributes (aria-label, data-status), all others properties.
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.includes("-")) node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

export function button(text, action, attributes = {}) {
  const node = element("button", { type: "button", textContent: text, ...attributes });
  node.onclick = action;
  return node;
}

const SVG = "http://www.w3.org/2000/svg";
const STAR = "M12 2.8l2.8 5.9 6.4.8-4.7 4.4 1.2 6.4L12 17.1l-5.7 3.2 1.2-6.4L2.8 9.5l6.4-.8z";

export function starButton(isOn, toggle) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", STAR);
  svg.append(path);
  const node = button("", toggle, { className: "star", "aria-label": "Favourite", title: "Favourite" });
  node.append(svg);
  node.setAttribute("aria-pressed", String(isOn));
  return node;
}

// Says one thing to screen readers, without a place on the page.
export function announce(text) {
  if ($("spoken").textContent !== text) $("spoken").textContent = text;
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without https there is no clipboard object; the old way works from a click.
    const area = element("textarea", { value: text, className: "offscreen" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
