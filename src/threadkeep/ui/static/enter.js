"use strict";
// Exchange the token in the link's fragment, or a password, for a session.
const form = document.getElementById("enter");
const status_ = document.querySelector("[role=status]");

function enter(word) {
  fetch("enter", { method: "POST", body: word }).then((answer) => {
    if (answer.ok) location.replace("./");
    else status_.textContent = status_.dataset.refused;
  });
}

if (form) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    enter(form.querySelector("input").value);
  });
} else {
  const token = location.hash.slice(1);
  history.replaceState(null, "", location.pathname);
  enter(token);
}
