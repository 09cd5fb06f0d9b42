"use strict";
const reports = [...document.querySelectorAll("details.report")];
const buttons = [...document.querySelectorAll("button.filter")];
const search = document.getElementById("search");
const count = document.getElementById("count");
const texts = new Map(reports.map((report) => [report, searchText(report)]));

function searchText(report) {
  const copy = report.cloneNode(true);
  copy.querySelectorAll("script").forEach((script) => script.remove());
  return copy.textContent.toLowerCase();
}

function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = new Set(buttons.filter((b) => b.ariaPressed === "true").map((b) => b.dataset.verdict));
  for (const report of reports) {
    const text = texts.get(report);
    report.hidden = !(wanted.has(report.dataset.verdict) && words.every((word) => text.includes(word)));
  }
  const shown = reports.filter((report) => !report.hidden).length;
  document.getElementById("nothing").hidden = shown > 0;
  count.textContent = shown < reports.length ? `${shown} of ${reports.length} shown` : "";
}

function draw(report) {
  const style = getComputedStyle(document.documentElement);
  const [ink, line, flat] = ["--ink", "--line", "--flat"].map((name) => style.getPropertyValue(name).trim());
  for (const holder of report.querySelectorAll(".figure:not(.drawn)")) {
    holder.classList.add("drawn");
    const figure = JSON.parse(holder.querySelector("script").textContent);
    const axes = { gridcolor: line, zerolinecolor: line, linecolor: line };
    const layout = { ...figure.layout, paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: ink, size: 12 } };
    layout.xaxis = { ...layout.xaxis, ...axes };
    layout.yaxis = { ...layout.yaxis, ...axes };
    for (const shape of layout.shapes ?? []) {
      if (shape.type === "rect") shape.line = { ...shape.line, color: ink };
    }
    for (const trace of figure.data) {
      if (trace.colorscale) trace.colorscale[1][1] = flat;
    }
    Plotly.newPlot(holder, figure.data, layout, { responsive: true, displaylogo: false });
  }
}

search.addEventListener("input", filter);
for (const button of buttons) {
  button.addEventListener("click", () => {
    button.ariaPressed = String(button.ariaPressed !== "true");
    filter();
  });
}
for (const report of reports) {
  report.addEventListener("toggle", () => report.open && draw(report));
  if (report.open) draw(report);
}
