"use strict";
// The steps of a thread: two chosen rows to compare; what stays when the rows load again.

const chosen = new Map(); // checkpoint id -> namespace
const bar = document.querySelector(".steps-compare");

function showChosen() {
  for (const box of document.querySelectorAll(".step > input")) box.checked = chosen.has(box.dataset.id);
  bar.hidden = chosen.size !== 2;
  if (bar.hidden) return;
  const [a, b] = [...chosen.keys()].sort();
  const { thread, compare } = bar.closest(".steps").dataset;
  const query = { a_thread: thread, a, a_ns: chosen.get(a), b_thread: thread, b, b_ns: chosen.get(b) };
  bar.querySelector("a").href = `${compare}?${new URLSearchParams(query)}`;
}

document.addEventListener("change", ({ target }) => {
  if (!target.matches(".step > input")) return;
  chosen.delete(target.dataset.id);
  if (target.checked) chosen.set(target.dataset.id, target.dataset.ns);
  if (chosen.size > 2) chosen.delete(chosen.keys().next().value);
  showChosen();
});

bar.querySelector("button").addEventListener("click", () => {
  chosen.clear();
  showChosen();
});

let kept = null;
document.addEventListener("htmx:before:swap", ({ detail: { ctx: detail } }) => {
  if (detail.target.id !== "steps") return;
  const open = [...detail.target.querySelectorAll("details[open]")].map((one) => one.dataset.key);
  const at = document.activeElement;
  kept = { open, href: detail.target.contains(at) && at.getAttribute("href"), top: detail.target.scrollTop };
});
document.addEventListener("htmx:after:swap", ({ detail: { ctx: detail } }) => {
  if (detail.target.id !== "steps" || !kept) return;
  for (const one of detail.target.querySelectorAll("details")) one.open = kept.open.includes(one.dataset.key);
  const link = kept.href ? detail.target.querySelector(`a[href="${CSS.escape(kept.href)}"]`) : null;
  link?.focus({ preventScroll: true });
  detail.target.scrollTop = kept.top;
  showChosen();
});
showChosen();
