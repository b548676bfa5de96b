// The grid of runs: thousands of rows and columns, of which only what is seen is fetched and drawn.
//
// It takes the place of a plain table. What is asked for (filter, order, columns, chosen runs) stands in the address.
import { refresh } from "./live.js";

const ROW = 34, HEAD = 46, COLUMN = 132, MORE_ROWS = 5, MORE_COLUMNS = 1, KEPT_ROWS = 2000, MOST_PICKED = 50;
const NAMES = ["where", "order", "columns", "state", "project"];

function make(name, kind, attributes = {}, ...children) {
  const node = document.createElement(name);
  if (kind) node.className = kind;
  for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

class Grid {
  constructor(root) {
    this.root = root;
    this.said = JSON.parse(root.dataset.said);
    this.rtl = getComputedStyle(root).direction === "rtl";
    this.rows = new Map();      // the number of a row: what the server said of it
    this.heads = new Map();     // the number of a column: its head
    this.drawn = new Map();     // the number of a row: its element
    this.picked = new Set(unpack(query().get("picked") ?? ""));
    this.size = { rows: 0, columns: 0 };
    this.at = { row: -1, column: -1 };   // where the keys are: -1 is the head, and the name of a run
    this.build();
    this.listen();
  }

  build() {
    this.head = make("div", "grid-head", { role: "row", "aria-rowindex": 1 });
    this.space = make("div", "grid-space", { role: "rowgroup" }, this.head);
    this.box = make("div", "grid", { role: "grid", "aria-label": this.said.grid, "aria-multiselectable": "true" }, this.space);
    this.head.dataset.row = -1;
    this.head.append(this.cell("columnheader", -1, -1));
  }

  async begin() {
    const back = history.state?.grid;
    if (!(await this.load(this.window(back ?? { top: 0, along: 0 })))) return;
    this.root.replaceChildren(this.box);
    if (back) { this.box.scrollTop = back.top; this.box.scrollLeft = this.rtl ? -back.along : back.along; }
    this.draw();
    this.count();
  }

  get nameWide() { return innerWidth <= 760 ? 150 : 260; }

  // What is seen from a place, and a little more on every side.
  window(place) {
    const tall = this.box.clientHeight || innerHeight * 0.66;
    const wide = (this.box.clientWidth || this.root.clientWidth) - this.nameWide;
    const first = Math.max(0, Math.floor(place.top / ROW) - MORE_ROWS);
    const left = Math.max(0, Math.floor(place.along / COLUMN) - MORE_COLUMNS);
    const last = Math.ceil((place.top + tall - HEAD) / ROW) + MORE_ROWS;
    const right = Math.ceil((place.along + wide) / COLUMN) + MORE_COLUMNS;
    return { first, left, rows: last - first, width: Math.max(1, right - left) };
  }

  get place() { return { top: this.box.scrollTop, along: Math.abs(this.box.scrollLeft) }; }

  has({ first, left, rows, width }) {
    const [last, right] = [Math.min(first + rows, this.size.rows), Math.min(left + width, this.size.columns)];
    for (let column = left; column < right; column += 1) if (!this.heads.has(column)) return false;
    for (let row = first; row < last; row += 1) {
      const known = this.rows.get(row);
      if (!known) return false;
      for (let column = left; column < right; column += 1) if (!known.values.has(column)) return false;
    }
    return true;
  }

  // One question at a time: whoever scrolls past things never asks for them.
  async load(window, fresh = false) {
    this.asked?.abort();
    const asked = this.asked = new AbortController();
    const here = new URL(this.root.dataset.grid, location.href);
    for (const name of NAMES) if (query().get(name)) here.searchParams.set(name, query().get(name));
    for (const [name, value] of Object.entries(window)) here.searchParams.set(name, value);
    try {
      const answer = await fetch(here, { credentials: "same-origin", signal: asked.signal, headers: { accept: "application/json" } });
      if (!answer.ok || !answer.headers.get("content-type")?.startsWith("application/json")) return false;
      this.take(await answer.json(), fresh);
      return true;
    } catch (error) {
      if (error.name !== "AbortError" && !(error instanceof TypeError)) throw error;
      return false;
    } finally { if (this.asked === asked) this.asked = null; }
  }

  take(told, fresh) {
    if (fresh || told.columns !== this.size.columns) { this.rows.clear(); this.heads.clear(); }
    if (this.rows.size > KEPT_ROWS) this.rows.clear();
    this.size = { rows: told.rows, columns: told.columns };
    told.heads.forEach((head, n) => this.heads.set(told.left + n, head));
    told.cells.forEach((row, n) => {
      const known = this.rows.get(told.first + n);
      const values = known && known.run === row.run ? known.values : new Map();
      row.values.forEach((value, m) => values.set(told.left + m, value));
      this.rows.set(told.first + n, { ...row, values });
    });
    this.box.setAttribute("aria-rowcount", told.rows + 1);
    this.box.setAttribute("aria-colcount", told.columns + 1);
    this.space.style.blockSize = `${HEAD + told.rows * ROW}px`;
    this.space.style.inlineSize = `${this.nameWide + told.columns * COLUMN}px`;
    this.box.style.blockSize = `min(68vh, ${HEAD + told.rows * ROW + 18}px)`;
  }

  // Draws what is seen: elements of what left go, those of what stays are kept.
  draw() {
    const seen = this.window(this.place);
    const last = Math.min(seen.first + seen.rows, this.size.rows);
    const columns = [];
    for (let n = seen.left; n < Math.min(seen.left + seen.width, this.size.columns); n += 1) columns.push(n);
    if (this.at.column >= 0 && this.at.column < this.size.columns && !columns.includes(this.at.column)) columns.push(this.at.column);
    for (const [row, node] of this.drawn) if ((row < seen.first || row >= last) && row !== this.at.row) { node.remove(); this.drawn.delete(row); }
    this.fill(this.head, -1, columns);
    for (let row = seen.first; row < last; row += 1) this.fill(this.drawn.get(row) ?? this.line(row), row, columns);
    if (this.drawn.has(this.at.row)) this.fill(this.drawn.get(this.at.row), this.at.row, columns);
    if (!this.has(seen) && !this.asked) this.load(seen).then((done) => done && this.draw());
  }

  line(row) {
    const node = make("div", "grid-row", { role: "row", "aria-rowindex": row + 2 });
    node.dataset.row = row;
    node.style.insetBlockStart = `${HEAD + row * ROW}px`;
    node.append(this.cell("rowheader", row, -1));
    this.drawn.set(row, node);
    this.space.append(node);
    return node;
  }

  cell(role, row, column) {
    const node = make("div", column < 0 ? "grid-name" : "grid-cell", { role, "aria-colindex": column + 2, tabindex: -1 });
    node.dataset.column = column;
    if (column >= 0) node.style.insetInlineStart = `${this.nameWide + column * COLUMN}px`;
    if (column < 0 && row >= 0) {
      node.append(make("input", "", { type: "checkbox", tabindex: -1 }), make("a", "", { tabindex: -1 }, make("bdi")));
    }
    return node;
  }

  fill(line, row, columns) {
    const wanted = new Set(columns);
    const found = new Map();
    for (const node of [...line.children]) {
      const column = Number(node.dataset.column);
      if (column >= 0 && !wanted.has(column)) node.remove(); else found.set(column, node);
    }
    for (const column of columns) if (!found.has(column)) found.set(column, line.appendChild(this.cell(row < 0 ? "columnheader" : "gridcell", row, column)));
    for (const [column, node] of found) {
      if (row < 0) this.fillHead(node, column); else if (column < 0) this.fillName(node, line, row); else this.fillCell(node, row, column);
      node.tabIndex = this.at.row === row && this.at.column === column ? 0 : -1;
    }
  }

  fillHead(node, column) {
    const order = query().get("order") ?? "";
    const head = column < 0 ? { column: "run_name", name: this.said.run, family: "", sort: /^run_name( asc)?$/i.test(order) ? "ascending" : /^run_name desc$/i.test(order) ? "descending" : "" } : this.heads.get(column);
    if (!head) return node.replaceChildren();
    node.title = head.name;
    node.setAttribute("aria-sort", head.sort || "none");
    node.classList.toggle("n", head.kind === "metrics" || head.kind === "params");
    node.replaceChildren(make("small", "", {}, head.family), make("bdi", "", {}, head.name), make("span", "grid-way", { "aria-hidden": "true" }, { ascending: "▴", descending: "▾" }[head.sort] ?? ""));
  }

  fillName(node, line, row) {
    const told = this.rows.get(row);
    const [box, link] = node.children;
    line.classList.toggle("waits", !told);
    const on = Boolean(told) && this.picked.has(told.run);
    line.setAttribute("aria-selected", String(on));
    box.checked = on;
    box.disabled = !told;
    box.setAttribute("aria-label", `${this.said.select} ${told?.title ?? ""}`);
    link.firstChild.textContent = told?.title ?? "…";
    if (told) { link.href = told.link; link.title = told.title; } else link.removeAttribute("href");
  }

  fillCell(node, row, column) {
    const value = this.rows.get(row)?.values.get(column);
    const kind = this.heads.get(column)?.kind;
    node.classList.toggle("n", kind === "metrics" || kind === "params");
    const [text, tone, title] = Array.isArray(value) ? value : [value ?? "", null, value ?? ""];
    if (tone !== null) node.replaceChildren(make("span", `badge ${tone}`, {}, text));
    else if (node.textContent !== text || node.firstElementChild) { node.textContent = text; node.title = title; }
  }

  listen() {
    let frame = 0, rest = 0;
    this.box.addEventListener("scroll", () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => this.draw());
      clearTimeout(rest);
      rest = setTimeout(() => history.replaceState({ ...history.state, grid: this.place }, ""), 150);
    }, { passive: true });
    this.box.addEventListener("click", (event) => this.click(event));
    this.box.addEventListener("keydown", (event) => { if (this.key(event)) event.preventDefault(); });
    this.box.addEventListener("focusin", (event) => this.note(event.target.closest("[data-column]")));
    new ResizeObserver(() => this.box.isConnected && this.draw()).observe(this.root);
    addEventListener("popstate", () => this.again(history.state?.grid));
    document.addEventListener("falaj:morphed", () => this.morphed());
    document.getElementById("grid-form").addEventListener("submit", (event) => this.compare(event));
  }

  note(node) {
    if (!node) return;
    this.at = { row: Number(node.parentNode.dataset.row), column: Number(node.dataset.column) };
    for (const other of this.box.querySelectorAll("[data-column][tabindex='0']")) other.tabIndex = -1;
    node.tabIndex = 0;
  }

  click(event) {
    const node = event.target.closest("[data-column]");
    if (!node) return;
    const row = Number(node.parentNode.dataset.row);
    this.note(node);
    if (row < 0) this.sort(Number(node.dataset.column));
    else if (event.target.localName === "input") this.pick(row);
    else if (event.target.localName !== "a" && !event.target.closest("a")) node.focus({ preventScroll: true });
  }

  key(event) {
    const { row, column } = this.at;
    const page = Math.max(1, Math.floor((this.box.clientHeight - HEAD) / ROW) - 1);
    const [ahead, back] = this.rtl ? ["ArrowLeft", "ArrowRight"] : ["ArrowRight", "ArrowLeft"];
    const far = event.ctrlKey || event.metaKey;
    const to = {
      ArrowDown: [row + 1, column], ArrowUp: [row - 1, column], [ahead]: [row, column + 1], [back]: [row, column - 1],
      PageDown: [row + page, column], PageUp: [row - page, column], Home: [far ? -1 : row, -1], End: [far ? this.size.rows : row, this.size.columns],
    }[event.key];
    if (to) return this.go(...to);
    if (event.key === " " && row >= 0) return this.pick(row);
    if (event.key === "Enter" && row < 0) return this.sort(column);
    if (event.key === "Enter" && event.target.localName !== "a") { const told = this.rows.get(row); if (told) location.assign(told.link); return true; }
    return false;
  }

  go(row, column) {
    this.at = { row: Math.min(Math.max(row, -1), this.size.rows - 1), column: Math.min(Math.max(column, -1), this.size.columns - 1) };
    this.show();
    this.draw();
    const line = this.at.row < 0 ? this.head : this.drawn.get(this.at.row) ?? this.line(this.at.row);
    this.draw();
    line.querySelector(`[data-column="${this.at.column}"]`)?.focus({ preventScroll: true });
    return true;
  }

  show() {
    const { row, column } = this.at;
    const { top, along } = this.place;
    const [tall, wide] = [this.box.clientHeight - HEAD, this.box.clientWidth - this.nameWide];
    if (row >= 0) this.box.scrollTop = Math.min(row * ROW, Math.max(top, (row + 1) * ROW - tall));
    const to = column < 0 ? 0 : Math.min(column * COLUMN, Math.max(along, (column + 1) * COLUMN - wide));
    this.box.scrollLeft = this.rtl ? -to : to;
  }

  sort(column) {
    const head = column < 0 ? "run_name" : this.heads.get(column)?.column;
    if (!head) return false;
    const now = query().get("order") ?? "";
    const first = column >= 0 && this.heads.get(column).kind === "metrics" ? ["DESC", "ASC"] : ["ASC", "DESC"];
    const next = now === `${head} ${first[0]}` ? `${head} ${first[1]}` : now === `${head} ${first[1]}` ? "" : `${head} ${first[0]}`;
    const place = { top: 0, along: this.place.along };
    history.pushState({ grid: place }, "", changed({ order: next, page: "" }));
    this.again(place);
    return true;
  }

  // Something was logged meanwhile: what is seen is asked for again. The rest of the page has changed already.
  async morphed() {
    this.count();
    if (!this.own && (await this.load(this.window(this.place), true))) this.draw();
    this.own = false;
  }

  // The address changed: everything is asked for anew.
  async again(place) {
    this.own = true;
    refresh();
    this.picked = new Set(unpack(query().get("picked") ?? ""));
    if (!(await this.load(this.window(place ?? { top: 0, along: 0 }), true))) return;
    this.box.scrollTop = place?.top ?? 0;
    if (place) this.box.scrollLeft = this.rtl ? -place.along : place.along;
    this.draw();
    this.count();
  }

  pick(row) {
    const run = this.rows.get(row)?.run;
    if (run && !this.picked.delete(run) && this.picked.size < MOST_PICKED) this.picked.add(run);
    history.replaceState(history.state, "", changed({ picked: pack([...this.picked]) }));
    this.draw();
    this.count();
    return true;
  }

  count() {
    const [button, out] = ["grid-compare", "grid-picked"].map((id) => document.getElementById(id));
    if (!button) return;
    out.textContent = this.picked.size ? ` (${this.picked.size})` : "";
    button.disabled = this.picked.size < 2;
  }

  compare(event) {
    event.preventDefault();
    const to = new URL(event.target.action, location.href);
    to.searchParams.set("runs", pack([...this.picked]));
    location.assign(to.href);
  }
}

const query = () => new URLSearchParams(location.search);

function changed(values) {
  const here = new URL(location.href);
  for (const [name, value] of Object.entries(values)) if (value) here.searchParams.set(name, value); else here.searchParams.delete(name);
  return here.href;
}

// Runs in an address: fraud~ID~ID~other~ID, each project said once; as pages/track/compare.py reads it.
function pack(runs) {
  const projects = new Map();
  for (const run of runs) { const [project, id] = run.split("~"); projects.set(project, [...(projects.get(project) ?? []), id]); }
  return [...projects].flatMap(([project, ids]) => [project, ...ids]).join("~");
}

function unpack(text) {
  let project = "";
  return text.split("~").flatMap((piece) => (/^[0-9a-f]{32}$/.test(piece) ? [`${project}~${piece}`] : (project = piece, [])));
}

// The field of columns gets a list to choose from: there may be thousands, so the server looks for names.
class Chooser {
  constructor(input, grid) {
    this.input = input;
    this.where = grid.dataset.grid;
    this.find = make("input", "", { type: "search", placeholder: input.dataset.choose, "aria-label": input.dataset.choose });
    this.list = make("div", "grid-names");
    this.sheet = make("div", "sheet grid-sheet", { hidden: "" }, this.find, this.list);
    input.closest("[data-keep]").append(this.sheet);
    input.addEventListener("focus", () => this.open());
    this.find.addEventListener("input", () => this.look());
    this.list.addEventListener("change", (event) => this.toggle(event.target));
    document.addEventListener("pointerdown", (event) => { if (!this.sheet.contains(event.target) && event.target !== input) this.sheet.hidden = true; });
    for (const node of [this.sheet, input]) node.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.key === "Escape" && !this.sheet.hidden) { this.sheet.hidden = true; event.stopPropagation(); }
    if (event.key === "ArrowDown" && event.target === this.input) { this.find.focus(); event.preventDefault(); }
    if (event.key === "Enter" && event.target === this.find) { event.preventDefault(); this.input.form.requestSubmit(); }
  }

  get chosen() { return (this.input.value.match(/(?:[^,"]|"(?:[^"\\]|\\.)*")+/g) ?? []).map((one) => one.trim()).filter(Boolean); }

  open() { if (this.sheet.hidden) { this.sheet.hidden = false; this.look(); } }

  async look() {
    const here = new URL(this.where, location.href);
    for (const [name, value] of Object.entries({ find: this.find.value, rows: 0, width: 60 })) here.searchParams.set(name, value);
    const answer = await fetch(here, { credentials: "same-origin" });
    if (!answer.ok) return;
    const told = await answer.json();
    this.list.replaceChildren(...told.heads.map((head) => this.choice(head)), ...(told.columns > told.heads.length ? [make("small", "soft", {}, `+ ${told.columns - told.heads.length}`)] : []));
  }

  choice(head) {
    const box = make("input", "", { type: "checkbox", value: head.column });
    box.checked = this.chosen.includes(head.column);
    return make("label", "", {}, box, make("bdi", "", {}, head.name), make("small", "soft", {}, head.family));
  }

  toggle(box) {
    const kept = this.chosen.filter((one) => one !== box.value);
    this.input.value = [...kept, ...(box.checked ? [box.value] : [])].join(", ");
  }
}

const root = document.querySelector("[data-grid]");
if (root) {
  new Grid(root).begin();
  const input = document.querySelector("[data-choose]");
  if (input) new Chooser(input, root);
}
