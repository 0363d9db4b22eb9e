"use strict";
// The page works without this: it adds a choice of theme, sorting, filtering and copying.
(function () {
  const root = document.documentElement;
  const all = (selector, within) => Array.from((within || document).querySelectorAll(selector));
  const store = {
    get() { try { return localStorage.getItem("unseen-theme"); } catch (e) { return null; } },
    set(value) { try { localStorage.setItem("unseen-theme", value); } catch (e) { /* private */ } },
  };

  // Theme: what the system prefers, until the button is pressed.
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";
  const toggle = document.getElementById("theme");
  const label = () => {
    toggle.textContent = dark() ? "Light theme" : "Dark theme";
  };
  const kept = store.get();
  if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  toggle.hidden = false;
  toggle.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    store.set(root.dataset.theme);
    label();
  });
  prefersDark.addEventListener("change", label);
  label();

  // Sorting: best first, worst first, then as it was. Fields without a value stay below.
  all("table.data").forEach((table) => {
    const body = table.tBodies[0];
    const original = Array.from(body.rows);
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      const first = head.dataset.first || "descending";
      const second = first === "descending" ? "ascending" : "descending";
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const next = now === first ? second : now === second ? "none" : first;
        heads.forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", next);
        body.append(...(next === "none" ? original : sorted(original, column, next)));
      });
    });
  });

  function sorted(rows, column, direction) {
    const sign = direction === "ascending" ? 1 : -1;
    const value = (row) => row.cells[column].dataset.v;
    const compare = (a, b) => {
      const x = value(a), y = value(b);
      if (x === undefined || x === "") return y === undefined || y === "" ? 0 : 1;
      if (y === undefined || y === "") return -1;
      const difference = column === 0 ? x.localeCompare(y, undefined, { numeric: true }) : x - y;
      return sign * difference;
    };
    return rows.slice().sort(compare);
  }

  // Filtering: every word must be in the name; what is filtered carries data-name.
  all("input[data-filter]").forEach((input) => {
    const box = document.getElementById(input.dataset.filter);
    const out = document.getElementById(input.dataset.filter + "-count");
    const apply = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const items = all("[data-name]", box);
      let shown = 0;
      items.forEach((item) => {
        const there = words.every((word) => item.dataset.name.toLowerCase().includes(word));
        item.hidden = !there;
        shown += there ? 1 : 0;
      });
      out.textContent = words.length ? shown + " of " + items.length : "";
    };
    input.closest(".tools").hidden = false;
    input.addEventListener("input", apply);
  });

  // Opening and closing all of a list.
  all("button[data-open]").forEach((button) => {
    const folds = all("details", document.getElementById(button.dataset.open));
    button.closest(".tools").hidden = false;
    button.addEventListener("click", () => {
      const open = folds.some((fold) => !fold.hidden && !fold.open);
      folds.forEach((fold) => { if (!fold.hidden) fold.open = open; });
      button.textContent = open ? "Close all" : "Open all";
    });
  });

  // Copying the citations.
  all("button[data-copy]").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", () => {
      const text = document.getElementById(button.dataset.copy);
      const select = () => getSelection().selectAllChildren(text);
      const done = () => { button.textContent = "Copied"; };
      if (navigator.clipboard) navigator.clipboard.writeText(text.textContent).then(done, select);
      else select();
    });
  });

  // On paper everything is open.
  addEventListener("beforeprint", () => all("details").forEach((fold) => { fold.open = true; }));
})();
