"use strict";
// The inbox loads again when threads change, but not while an answer is being written.

function isBusy(inbox) {
  return document.activeElement.closest("#inbox form, #inbox details[open]") || isFilled(inbox);
}

document.body.addEventListener("changed", () => htmx.trigger(document.getElementById("inbox"), "refresh"));
document.addEventListener("htmx:before:swap", (event) => {
  const inbox = document.getElementById("inbox");
  if (event.target !== inbox || !isBusy(inbox)) return;
  event.preventDefault();
  document.getElementById("news").hidden = false;
});
