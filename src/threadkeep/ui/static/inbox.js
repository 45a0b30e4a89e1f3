"use strict";
// The inbox loads again when threads change, but not while an answer is being written.

document.body.addEventListener("changed", () => {
  const inbox = document.getElementById("inbox");
  const is_busy = inbox.contains(document.activeElement) && document.activeElement.form;
  const is_changed = [...inbox.querySelectorAll("textarea, input")].some((one) => one.value !== one.defaultValue || one.checked !== one.defaultChecked);
  if (is_busy || is_changed) document.getElementById("news").hidden = false;
  else htmx.trigger(inbox, "refresh");
});
