"use strict";
const valueOf = (row, column) => {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  return cell.classList.contains("n") ? Number(text) : text;
};

const headings = (table) => table.tHead.rows[table.tHead.rows.length - 1].cells;

const sort = (table, heading) => {
  const column = heading.cellIndex;
  const isDown = heading.getAttribute("aria-sort") === "ascending";
  for (const other of headings(table)) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", isDown ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const [x, y] = [valueOf(a, column), valueOf(b, column)];
    const order = typeof x === "number" ? x - y : x.localeCompare(y);
    return isDown ? -order : order;
  });
  table.tBodies[0].append(...rows);
};

for (const table of document.querySelectorAll("table.sortable")) {
  for (const heading of headings(table)) {
    heading.querySelector("button").addEventListener("click", () => sort(table, heading));
  }
}

for (const input of document.querySelectorAll("input[data-filters]")) {
  const rows = [...document.getElementById(input.dataset.filters).tBodies[0].rows];
  const found = input.closest("p").querySelector(".found");
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    found.textContent = wanted && `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  });
}

const openTarget = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
addEventListener("hashchange", openTarget);
openTarget();
