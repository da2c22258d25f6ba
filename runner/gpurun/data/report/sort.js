"use strict";
// Tables are complete without this; it only makes their columns sortable.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const compare = (a, b) => {
        const x = key(a), y = key(b);
        if ((x === "") !== (y === "")) return x === "" ? 1 : -1; // what is missing stays at the end
        const order = Number.isNaN(Number(x) - Number(y)) ? x.localeCompare(y, "en", { numeric: true }) : x - y;
        return down ? -order : order;
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}
