"use strict";
// Plots: <figure data-plot='{"kind": "lines" or "bars", "x": [...], "series": [{"name", "values"}]}'>.
// Values are bytes if "bytes" is true. "log": a logarithmic scale, which a button with
// data-scale="ID" switches.

const drawn = new Map();

function bytes(count) {
  let at = 0;
  while (Math.abs(count) >= 999.5 && at < 4) { count /= 1000; at++; }
  return `${at ? count.toFixed(1) : Math.round(count)} ${["bytes", "kB", "MB", "GB", "TB"][at]}`;
}

// A colour may be light-dark(...), which a canvas does not know: let the browser compute it.
function resolved(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function draw(figure) {
  const data = JSON.parse(figure.dataset.plot);
  const show = data.bytes ? bytes : (count) => count.toLocaleString(document.documentElement.lang);
  const axis = { stroke: resolved("--soft"), grid: { stroke: resolved("--line"), width: 1 }, ticks: { stroke: resolved("--line"), width: 1 } };
  const lanes = ["--lane-1", "--lane-4", "--lane-3", "--lane-2", "--good", "--bad", "--warn"];
  const isLog = figure.hasAttribute("data-log");
  const series = data.series.map((one, number) => ({
    label: one.name,
    stroke: resolved(lanes[number % lanes.length]),
    width: 2,
    dash: one.dashed ? [6, 4] : undefined,
    fill: data.kind === "bars" ? resolved(lanes[number % lanes.length]) : undefined,
    paths: data.kind === "bars" ? uPlot.paths.bars({ size: [0.7, 40] }) : undefined,
    points: { show: data.kind !== "bars" && data.x.length < 40 },
    value: (_, value) => (value == null ? "–" : show(value)),
  }));
  const unit = data.unit ? ` ${data.unit}` : "";
  const options = {
    width: figure.clientWidth || 300,
    height: figure.clientWidth < 500 ? 220 : 280,
    cursor: { drag: { x: true, y: false } },
    scales: {
      x: { time: false, range: data.kind === "bars" ? (_, low, high) => [low - 0.5, high + 0.5] : undefined },
      y: isLog ? { distr: 3 } : { range: (_, low, high) => [0, Math.max(high, 1) * 1.05] },
    },
    axes: [
      { ...axis, values: (_, ticks) => ticks.map((tick) => `${tick.toLocaleString(document.documentElement.lang)}${unit}`) },
      { ...axis, size: 82, values: (_, ticks) => ticks.map((tick) => (tick == null ? "" : show(tick))) },
    ],
    series: [{ label: data.label, value: (_, at) => (at == null ? "–" : `${at}${unit}`) }, ...series],
  };
  drawn.get(figure)?.destroy();
  const rows = data.series.map((one) => (isLog ? one.values.map((value) => value || null) : one.values));
  drawn.set(figure, new uPlot(options, [data.x, ...rows], figure));
}

function drawAll(root) {
  if (typeof uPlot === "undefined") return;
  for (const [figure, plot] of drawn) if (!figure.isConnected) { plot.destroy(); drawn.delete(figure); }
  for (const figure of root.querySelectorAll("[data-plot]")) if (!drawn.has(figure)) draw(figure);
}

document.addEventListener("DOMContentLoaded", () => drawAll(document));
document.addEventListener("htmx:after:process", (event) => drawAll(event.target.parentElement ?? document));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((_, figure) => draw(figure)));
let timer = 0;
addEventListener("resize", () => {
  clearTimeout(timer);
  timer = setTimeout(() => drawn.forEach((_, figure) => draw(figure)), 100);
});

document.addEventListener("click", (event) => {
  const scale = event.target.closest("[data-scale]");
  if (scale) {
    const figure = document.getElementById(scale.dataset.scale);
    scale.setAttribute("aria-pressed", String(figure.toggleAttribute("data-log")));
    draw(figure);
  }
});
