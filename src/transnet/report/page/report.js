"use strict";

function sortBy(header) {
  const table = header.closest("table");
  const column = [...header.parentNode.children].indexOf(header);
  const up = header.getAttribute("aria-sort") === "descending";
  for (const other of header.parentNode.children) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  const value = (row) => row.children[column].dataset.value;
  const compare = (a, b) => {
    const [x, y] = [value(a), value(b)];
    if (x === "" || y === "") return (x === "") - (y === ""); // nothing to sort by: last, both ways
    const numbers = !Number.isNaN(Number(x)) && !Number.isNaN(Number(y));
    const order = numbers ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true });
    return up ? order : -order;
  };
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort(compare));
}

for (const button of document.querySelectorAll("table.sortable thead button")) {
  button.addEventListener("click", () => sortBy(button.closest("th")));
}

function openRun() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!(target instanceof HTMLDetailsElement)) return;
  for (let box = target; box; box = box.parentElement.closest("details")) box.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", openRun);
// A link that is followed again changes no address; the address is new only after the click.
addEventListener("click", (event) => event.target.closest?.('a[href^="#run-"]') && setTimeout(openRun));
openRun();

// A table wider than its place shows at which edge there is more of it.
function markEdges(scroll) {
  const left = scroll.scrollWidth - scroll.clientWidth - scroll.scrollLeft;
  scroll.parentElement.classList.toggle("more-left", scroll.scrollLeft > 1);
  scroll.parentElement.classList.toggle("more-right", left > 1);
}
const sizes = new ResizeObserver((entries) => entries.forEach((entry) => markEdges(entry.target)));
for (const scroll of document.querySelectorAll(".scroll")) {
  sizes.observe(scroll);
  scroll.addEventListener("scroll", () => markEdges(scroll), { passive: true });
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
