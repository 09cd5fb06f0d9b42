"use strict";
const reports = [...document.querySelectorAll("details.report")];
const buttons = [...document.querySelectorAll("button.filter")];
const search = document.getElementById("search");
const count = document.getElementById("count");
const texts = new Map(reports.map((report) => [report, searchText(report)]));

function searchText(report) {
  const copy = report.cloneNode(true);
  copy.querySelectorAll("svg").forEach((figure) => figure.remove());
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

search.addEventListener("input", filter);
for (const button of buttons) {
  button.addEventListener("click", () => {
    button.ariaPressed = String(button.ariaPressed !== "true");
    filter();
  });
}
