"use strict";
(() => {
  const parsed = new WeakMap();
  const views = new WeakMap();

  // Columns, texts as levels and codes, back to one object per row.
  function unpack(columns) {
    const names = Object.keys(columns);
    const read = names.map((name) => {
      const column = columns[name];
      return column.levels
        ? (i) => (column.codes[i] < 0 ? null : column.levels[column.codes[i]])
        : (i) => column[i];
    });
    const first = columns[names[0]];
    const length = first.codes ? first.codes.length : first.length;
    return Array.from({ length }, (_, i) => Object.fromEntries(names.map((name, k) => [name, read[k](i)])));
  }

  function content(figure) {
    if (!parsed.has(figure)) {
      parsed.set(figure, {
        spec: figure.querySelector("script.spec").textContent,
        rows: unpack(JSON.parse(figure.querySelector("script.rows").textContent)),
      });
    }
    return parsed.get(figure);
  }

  function draw(plot) {
    if (views.has(plot)) return;
    const figure = plot.closest("figure");
    const { spec, rows } = content(figure);
    const where = Object.entries(JSON.parse(plot.dataset.where));
    const own = rows.filter((row) => where.every(([key, value]) => row[key] === value));
    const complete = { ...JSON.parse(spec), datasets: { rows: own } };
    if (plot.closest(".many") && !complete.usermeta) complete.height = 200;
    const pending = vegaEmbed(plot, complete, { mode: "vega-lite", actions: false, renderer: "canvas" }).then(({ view }) => {
      plot.style.minHeight = "0";
      return view;
    });
    views.set(plot, pending);
    highlight(figure);
  }

  function highlight(figure) {
    const pressed = figure.querySelector('.entry[aria-pressed="true"]');
    const name = pressed ? pressed.dataset.name : null;
    for (const plot of figure.querySelectorAll(".plot")) {
      if (views.has(plot)) views.get(plot).then((view) => view.signal("highlight", name).runAsync());
    }
  }

  for (const figure of document.querySelectorAll("figure")) {
    figure.addEventListener("click", (event) => {
      const entry = event.target.closest("button.entry");
      if (!entry) return;
      const on = entry.getAttribute("aria-pressed") !== "true";
      for (const other of figure.querySelectorAll("button.entry")) other.setAttribute("aria-pressed", "false");
      entry.setAttribute("aria-pressed", String(on));
      highlight(figure);
    });
  }

  // Figures are drawn as they come near, so that a page of twenty tasks opens at once; all of them before printing.
  const margin = 600;
  const plots = document.querySelectorAll(".plot");
  const near = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        near.unobserve(entry.target);
        draw(entry.target);
      }
    },
    { rootMargin: `${margin}px` },
  );
  for (const plot of plots) {
    if (plot.getBoundingClientRect().top < window.innerHeight + margin) draw(plot);
    else near.observe(plot);
  }
  window.addEventListener("beforeprint", () => plots.forEach(draw));
})();
