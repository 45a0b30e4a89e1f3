"use strict";
// Keys, times in the reader's language, and updates of a page that is left open.

const language = document.documentElement.lang;
const relative = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "short" });
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const SHORT = { style: "unit", unitDisplay: "short", maximumFractionDigits: 0 };
// "2 min ago" and "2 分钟前", from "2 min. ago" and "2分钟前"
const readWell = (text) => text.replaceAll(".", "").replace(/(\d)(\p{Script=Han})/gu, "$1 $2");

function showTimes(root) {
  for (const one of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(one.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    const seconds = (moment - Date.now()) / 1000;
    one.title = moment.toLocaleString(language, { dateStyle: "full", timeStyle: "long" });
    const [unit, size] = UNITS.find(([, size]) => Math.abs(seconds) >= size) ?? UNITS[3];
    if (one.hasAttribute("data-lasting")) {
      one.textContent = readWell(new Intl.NumberFormat(language, { ...SHORT, unit }).format(Math.max(-seconds, 0) / size));
    } else if (!one.hasAttribute("data-exact") && Math.abs(seconds) <= 7 * 86400) {
      one.textContent = Math.abs(seconds) < 5 ? document.documentElement.dataset.now : readWell(relative.format(Math.round(seconds / size), unit));
    }
  }
}

// j and k go through rows: elements with data-row, by the first link in each.
function move(by) {
  const links = [...document.querySelectorAll("[data-row]")]
    .filter((row) => row.offsetParent !== null)
    .map((row) => (row.matches("a, button, summary, [tabindex]") ? row : row.querySelector("a, button, summary")))
    .filter(Boolean);
  if (!links.length) return;
  const at = links.findIndex((link) => link === document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(Math.max(at + by, 0), links.length - 1);
  links[next].focus();
  links[next].scrollIntoView({ block: "nearest" });
}

// A form in this part has been filled in, and not sent.
function isFilled(part) {
  const changed = (one) => one.value !== one.defaultValue || one.checked !== one.defaultChecked;
  return [...part.querySelectorAll("textarea, input")].some(changed);
}

let before = "";
document.addEventListener("keydown", (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey) return;
  if (event.target.matches("input, textarea, select, [contenteditable]")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const go = before === "g" && document.querySelector(`nav [data-key="${CSS.escape(event.key)}"]`);
  before = event.key;
  if (go) go.click();
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "?") document.getElementById("help").showModal();
  else if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (!search) return;
    event.preventDefault();
    search.focus();
  }
});

// Copies the text beside a button, whose data-copy then says so.
document.addEventListener("click", async ({ target }) => {
  const button = target.closest("[data-copy]");
  if (!button) return;
  const text = button.parentElement.querySelector("code, .id");
  try { await navigator.clipboard.writeText(text.textContent); }
  catch { getSelection().selectAllChildren(text); return; }
  button.textContent = button.dataset.copy;
});

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-help]")) document.getElementById("help").showModal();
  const chosen = event.target.closest("[data-language]");
  if (!chosen) return;
  const path = chosen.parentElement.dataset.path;
  document.cookie = `threadkeep-language=${chosen.dataset.language}; path=${path}; max-age=31536000; samesite=lax`;
  location.reload();
});

// Without a session, as after a restart of the page, each answer is 401.
function answered({ status }) {
  if (status === 401) document.getElementById("closed").hidden = false;
}
document.addEventListener("htmx:response:error", ({ detail }) => answered(detail.ctx.response));

// An element with data-live=URL: the server says when what the page shows has changed since it was
// drawn (data-seen). Parts with hx-trigger="changed from:body" then load again. A hidden page keeps
// no connection.
let stream = null;
let wasOpen = false;
function live() {
  const { live: url, seen } = document.querySelector("[data-live]")?.dataset ?? {};
  if (document.hidden || !url) {
    stream?.close();
    stream = null;
  } else if (!stream) {
    const to = new URL(url, location.href);
    if (seen) to.searchParams.set("seen", seen);
    else if (wasOpen) htmx.trigger(document.body, "changed");
    wasOpen = true;
    stream = new EventSource(to);
    stream.addEventListener("error", () => {
      if (stream?.readyState !== EventSource.CLOSED) return; // (it connects again)
      stream = null;
      fetch(document.querySelector("link[rel=icon]").href, { cache: "no-store" }).then(answered, () => {});
    });
    stream.addEventListener("changed", () => htmx.trigger(document.body, "changed"));
    for (const name of ["changed", "failed"]) {
      stream.addEventListener(name, () => document.body.classList.toggle("stale", name === "failed"));
    }
  }
}

document.addEventListener("visibilitychange", live);
document.addEventListener("DOMContentLoaded", () => {
  showTimes(document);
  setInterval(() => document.hidden || showTimes(document), 30_000);
  document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest" });
  live();
});
document.addEventListener("htmx:after:process", (event) => showTimes(event.target));
