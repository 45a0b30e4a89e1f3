"use strict";
// Draws the graph. The fragment of the address names marked nodes, a line "node class" for each.

const drawn = document.getElementById("drawn"), failed = document.getElementById("failed");
const { textContent: source } = document.getElementById("source");
const lines = source.split("\n").filter((line) => !/^\s*classDef /.test(line)); // (graph.css has the colours)
mermaid.initialize({ startOnLoad: false, securityLevel: "strict", theme: "base", fontFamily: "inherit", fontSize: 13, flowchart: { nodeSpacing: 30, rankSpacing: 32, subGraphTitleMargin: { top: 2, bottom: 12 } }, suppressErrorRendering: true });

async function draw() {
  const marks = decodeURIComponent(location.hash.slice(1)).split("\n");
  const classes = marks.filter((one) => /^[\w\\-]+ (ran|next|waiting|failed)$/.test(one)).map((one) => `class ${one}`);
  try {
    // (made from a module that the user has named, and cleaned by Mermaid)
    drawn.innerHTML = (await mermaid.render("graph", [...lines, ...classes].join("\n"))).svg;
  } catch {
    failed.hidden = false;
    document.getElementById("source").hidden = false;
  }
  const frame = window.frameElement;
  if (frame) frame.style.height = `${document.documentElement.offsetHeight}px`;
  const marked = [".failed", ".waiting", ".next", ".ran"].map((kind) => drawn.querySelector(kind)).find(Boolean)?.getBoundingClientRect();
  if (marked) scrollTo(0, scrollY + marked.top + marked.height / 2 - innerHeight / 2);
}
if (source) draw();
addEventListener("hashchange", draw);
