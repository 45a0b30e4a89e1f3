"use strict";
// The steps of a thread: the shown one, two chosen rows to compare, and what stays when parts load.

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

// A step is shown beside the list without a new page: by a click, or by the arrow keys.
let timer = 0;
function show(url, isStep = false) {
  const query = new URL(url, location.href).searchParams;
  if (isStep) history.replaceState(null, "", url);
  else if (url !== location.href) history.pushState(null, "", url);
  showCurrent();
  clearTimeout(timer);
  timer = setTimeout(() => {
    const at = `${place.dataset.at}?${query}`;
    htmx.ajax("GET", at, { target: "#at", swap: "outerHTML" });
  }, isStep ? 120 : 0);
}

// The graph is drawn in a frame, once for all steps. Its address names the nodes of the shown step.
const fold = document.querySelector(".graph-fold");
function showMarks() {
  if (!fold?.open) return;
  const marks = document.getElementById("point")?.dataset.marks ?? "";
  fold.querySelector("iframe").contentWindow.location.replace(`${fold.dataset.graph}#${encodeURIComponent(marks)}`);
}
fold?.addEventListener("toggle", () => {
  localStorage.setItem("threadkeep-graph", fold.open ? "open" : "closed");
  showMarks();
});
if (fold) fold.open = (localStorage.getItem("threadkeep-graph") ?? (innerWidth >= 1180 ? "open" : "")) === "open";

const place = document.querySelector(".place");
function showCurrent() {
  const at = new URLSearchParams(location.search).get("at");
  for (const row of place.querySelectorAll(".step[data-step]")) {
    const isIt = at ? row.dataset.step === at : row.dataset.head !== undefined;
    row.toggleAttribute("aria-current", isIt);
    if (!isIt) continue;
    row.setAttribute("aria-current", "true");
    const fold = row.closest("details");
    if (fold) fold.open = true;
    const list = document.getElementById("steps");
    const { top, bottom } = row.getBoundingClientRect(), frame = list.getBoundingClientRect();
    if (top < frame.top + 50 || bottom > frame.bottom - 50) list.scrollTop += (top + bottom - frame.top - frame.bottom) / 2;
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a.to-step");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  show(link.href);
  if (innerWidth < 760) place.scrollIntoView();
});
addEventListener("popstate", () => show(location.href, true));
document.addEventListener("keydown", (event) => {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by || event.metaKey || event.ctrlKey || event.altKey || event.shiftKey) return;
  if (event.target !== document.body && !event.target.matches(".steps, .steps a, .steps summary, #main")) return;
  const rows = [...place.querySelectorAll(".step[data-step]")].filter((row) => row.offsetParent !== null);
  const to = rows[rows.findIndex((row) => row.hasAttribute("aria-current")) + by]?.querySelector("a.to-step");
  if (!to) return;
  event.preventDefault();
  if (document.activeElement.closest(".steps")) to.focus({ preventScroll: true });
  show(to.href, true);
});

// What is open or focused stays so when the list or the step loads again.
const kept = new Map();
document.addEventListener("htmx:before:swap", (event) => {
  const { target, sourceElement } = event.detail.ctx;
  if (!["steps", "point", "newest"].includes(target.id) || sourceElement.closest("form")) return;
  if (target.id !== "steps" && (isFilled(target) || target.querySelector("dialog[open]"))) { event.preventDefault(); return; }
  if (target.id === "newest") return;
  const open = [...target.querySelectorAll("details[open]")].map((one) => one.dataset.key);
  const at = document.activeElement;
  kept.set(target.id, { open, href: target.contains(at) && at.getAttribute("href"), top: target.scrollTop });
});
document.addEventListener("htmx:after:swap", ({ detail: { ctx } }) => {
  const { id } = ctx.target, was = kept.get(id), part = document.getElementById(id);
  if (was && part) {
    kept.delete(id);
    for (const one of part.querySelectorAll("details[data-key]")) if (was.open.includes(one.dataset.key)) one.open = true;
    const link = was.href ? part.querySelector(`a[href="${CSS.escape(was.href)}"]`) : null;
    link?.focus({ preventScroll: true });
    part.scrollTop = was.top;
  }
  if (id === "steps") { showChosen(); showCurrent(); }
  else showMarks();
});
showChosen();
showCurrent();

// A link from a search names a message by its place.
const message = new URLSearchParams(location.search).get("message");
const named = message && document.querySelector(`#chat [data-place="${CSS.escape(message)}"]`);
named?.classList.add("named");
named?.scrollIntoView({ block: "center" });
