"use strict";
// Dialogs of the actions, names typed in, and answers that refuse a change.

document.addEventListener("click", (event) => {
  const opens = event.target.closest("[data-opens]");
  if (opens) document.getElementById(opens.dataset.opens).showModal();
  for (const menu of document.querySelectorAll(".menu[open]")) if (event.target.closest("button") || !menu.contains(event.target)) menu.open = false;
  if (event.target.closest("[data-closes]")) event.target.closest("dialog").close();
});

document.addEventListener("input", (event) => {
  const { name } = event.target.dataset;
  if (name !== undefined && event.target.closest(".acts")) event.target.form.querySelector("button.danger").disabled = event.target.value !== name;
});

function refused(event) {
  const { sourceElement: elt, response, text } = event.detail.ctx ?? {};
  const part = elt?.closest("[data-lost]");
  if (!part) return;
  const place = elt.querySelector(".said") ?? part.querySelector(".said[role=status]");
  const is_text = response?.headers.get("content-type")?.startsWith("text/plain");
  place.textContent = is_text ? text : part.dataset.lost;
  place.className = "said refused";
}
document.addEventListener("htmx:response:error", refused);
document.addEventListener("htmx:error", refused);
