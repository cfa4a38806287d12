"use strict";
(() => {
  const contents = new WeakMap();
  const views = new WeakMap();
  const MAX_ROWS = 200;

  // Convert columns to one object per row. Columns of text are stored as levels and codes.
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

  async function unzip(script) {
    const bytes = Uint8Array.from(atob(script.textContent), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  // Load Vega before the first figure is drawn.
  let vega;
  async function load() {
    const script = document.createElement("script");
    script.textContent = await unzip(document.getElementById("vega"));
    document.head.append(script);
  }

  // The specification of a figure, its rows, and the columns of its file.
  function content(figure) {
    if (!contents.has(figure)) {
      const packed = unzip(figure.querySelector("script.content")).then((text) => JSON.parse(text));
      contents.set(figure, packed.then((content) => ({ ...content, rows: unpack(content.rows) })));
    }
    return contents.get(figure);
  }

  async function embed(plot) {
    await (vega ??= load());
    const { spec, rows } = await content(plot.closest("figure"));
    const where = Object.entries(JSON.parse(plot.dataset.where));
    const panelRows = rows.filter((row) => where.every(([key, value]) => row[key] === value));
    const panelSpec = { ...structuredClone(spec), datasets: { rows: panelRows } };
    const panels = plot.closest(".many");
    if (panels && !panelSpec.usermeta) panelSpec.height = panels.children.length === 2 ? 280 : 200;
    const { view } = await vegaEmbed(plot, panelSpec, { mode: "vega-lite", actions: false, renderer: "canvas" });
    plot.style.minHeight = "0";
    return view;
  }

  function draw(plot) {
    if (views.has(plot)) return;
    const pending = embed(plot);
    views.set(plot, pending);
    pending.catch((error) => {
      plot.textContent = `This figure cannot be drawn here (${error.message}); its rows are in the CSV file that is linked below.`;
      console.error(error);
    });
    highlight(plot.closest("figure"));
  }

  // The names selected in the legend; null if none is selected.
  async function selectedNames(figure) {
    const pressed = [...figure.querySelectorAll('.entry[aria-pressed="true"]')];
    if (!pressed.length) return null;
    const names = pressed.filter((entry) => "name" in entry.dataset).map((entry) => entry.dataset.name);
    if (!pressed.some((entry) => "rest" in entry.dataset)) return names;
    const named = new Set([...figure.querySelectorAll(".entry[data-name]")].map((entry) => entry.dataset.name));
    const { rows } = await content(figure);
    return [...new Set([...names, ...rows.map((row) => row.contestant).filter((name) => !named.has(name))])];
  }

  async function highlight(figure) {
    const names = await selectedNames(figure);
    for (const plot of figure.querySelectorAll(".plot")) {
      if (views.has(plot)) views.get(plot).then((view) => view.signal("highlight", names).runAsync(), () => {});
    }
    if (figure.querySelector("details.rows")?.open) tabulate(figure);
  }

  function press(figure, button) {
    if (button.matches(".entry")) {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    } else {
      const names = new Set(JSON.parse(button.dataset.names));
      const entries = [...figure.querySelectorAll(".entry")].filter((entry) => names.has(entry.dataset.name));
      const arePressed = entries.every((entry) => entry.getAttribute("aria-pressed") === "true");
      for (const entry of entries) entry.setAttribute("aria-pressed", String(!arePressed));
    }
    highlight(figure);
  }

  const text = (value) => (value === null || value === undefined ? "" : String(value));
  const quoted = (value) => (/[",\r\n]/.test(text(value)) ? `"${text(value).replaceAll('"', '""')}"` : text(value));

  async function download(figure, name) {
    const { row_columns, rows } = await content(figure);
    const lines = [Object.keys(row_columns), ...rows.map((row) => Object.values(row_columns).map((column) => row[column]))];
    const csv = lines.map((line) => `${line.map(quoted).join(",")}\n`).join("");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv], { type: "text/csv" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  // Show the first rows of the selected contestants as a table.
  async function tabulate(figure) {
    const { row_columns, rows } = await content(figure);
    const names = await selectedNames(figure);
    const selected = names === null ? rows : rows.filter((row) => names.includes(row.contestant));
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const name of Object.keys(row_columns)) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      head.append(cell);
    }
    const body = table.createTBody();
    for (const row of selected.slice(0, MAX_ROWS)) {
      const line = body.insertRow();
      for (const column of Object.values(row_columns)) line.insertCell().textContent = text(row[column]);
    }
    const details = figure.querySelector("details.rows");
    const isCut = selected.length > MAX_ROWS;
    const cut = isCut ? `The first ${MAX_ROWS} of ${selected.length} rows; the file has all ${rows.length}.` : "";
    details.querySelector(".shown").textContent = cut;
    details.querySelector(".wide").replaceChildren(table);
  }

  for (const figure of document.querySelectorAll("figure")) {
    figure.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button?.matches(".entry, .all")) press(figure, button);
      if (button?.matches(".download")) download(figure, button.dataset.file);
    });
    const rows = figure.querySelector("details.rows");
    rows?.addEventListener("toggle", () => rows.open && tabulate(figure));
  }

  // On a wide page, the table of contents is always open, next to the sections. On a narrow page, a click on one of its
  // links or outside it closes it, and so does Escape.
  const menu = document.querySelector("nav details");
  const wide = window.matchMedia("(min-width: 64rem)");
  const place = () => (menu.open = wide.matches);
  const close = () => wide.matches || (menu.open = false);
  wide.addEventListener("change", place);
  place();
  menu.addEventListener("click", (event) => event.target.closest("a") && close());
  document.addEventListener("click", (event) => menu.contains(event.target) || close());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open || wide.matches) return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });

  // Hide the sections of single tasks that do not match the filters, on the page and in the table of contents. Other
  // sections are always shown.
  const filters = [...document.querySelectorAll(".filter select")];
  const sections = [...document.querySelectorAll("main > section")];

  function meets(section, by, name) {
    if (!name || !section.dataset.task) return true;
    return by === "contestant" ? JSON.parse(section.dataset.contestants).includes(name) : section.dataset[by] === name;
  }

  function filter() {
    const selections = filters.map((select) => [select.dataset.by, select.value]);
    for (const section of sections) {
      section.hidden = !selections.every(([by, name]) => meets(section, by, name));
      const link = document.querySelector(`nav a[href="#${section.id}"]`);
      if (link) link.parentElement.hidden = section.hidden;
    }
    for (const list of document.querySelectorAll(".menu ul[aria-labelledby]")) {
      const isEmpty = [...list.children].every((item) => item.hidden);
      list.hidden = document.getElementById(list.getAttribute("aria-labelledby")).hidden = isEmpty;
    }
    const shown = sections.filter((section) => !section.hidden).length;
    document.querySelector(".filter .count").textContent =
      shown === sections.length ? "" : `${shown} of ${sections.length} sections`;
  }

  // Highlight a contestant in all figures and tables.
  function pick(name) {
    for (const figure of document.querySelectorAll("figure")) {
      const entries = [...figure.querySelectorAll(".entry")];
      for (const entry of entries) entry.setAttribute("aria-pressed", String(entry.dataset.name === name));
      if (entries.length) highlight(figure);
    }
    for (const head of document.querySelectorAll("main tbody th")) {
      head.parentElement.classList.toggle("picked", Boolean(name) && head.firstChild.textContent.trim() === name);
    }
  }

  for (const select of filters) {
    select.addEventListener("change", () => {
      filter();
      if (select.dataset.by === "contestant") pick(select.value);
    });
  }

  // Draw a figure when it is near the screen, so that a large page opens without delay. Draw all figures before
  // printing.
  const margin = 600;
  const plots = document.querySelectorAll(".plot");
  const observer = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        observer.unobserve(entry.target);
        draw(entry.target);
      }
    },
    { rootMargin: `${margin}px` },
  );
  for (const plot of plots) observer.observe(plot);
  window.addEventListener("beforeprint", () => plots.forEach(draw));
})();
