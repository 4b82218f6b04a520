// Tables marked sortable get a button in each heading. Without this script they stand in the order they were written.
(() => {
  const number = text => {  // of "1,234 (5%)", "+0.3 points"; "under 25" comes before "25 to under 40"
    const found = text.replace(/,/g, "").match(/^(under )?([-+]?\d+(\.\d+)?)/);
    return found ? Number(found[2]) - (found[1] ? 1e-9 : 0) : null;
  };
  const compare = (a, b) => {
    const [x, y] = [number(a), number(b)];
    if (x !== null && y !== null && x !== y) return x - y;
    if ((x === null) !== (y === null)) return x === null ? 1 : -1;
    return a.localeCompare(b, undefined, {numeric: true});
  };
  const sort = (table, column, down) => {
    const body = table.tBodies[0], text = row => row.cells[column].textContent.trim();
    const rows = [...body.rows].sort((one, other) => compare(text(one), text(other)));
    body.append(...(down ? rows.reverse() : rows));
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach(other => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        sort(table, column, down);
      });
    });
  }
})();
