"use strict";
// Charts, filters, the choice of a series, and comparisons. Texts go into the page as text, never as HTML.

const waiting = {};
function faperfData(name, data) {
  waiting[name]?.(data);
}

function load(name, file) {
  return new Promise((resolve, reject) => {
    waiting[name] = resolve;
    const script = document.createElement("script");
    script.src = file;
    script.onerror = () => reject(new Error(file));
    document.head.append(script);
  });
}

const byId = (id) => document.getElementById(id);
const dark = window.matchMedia("(prefers-color-scheme: dark)");

// ── charts ──

const FILLS = { // [light, dark], with text on them in the page's own colour
  "--plain": ["#9cc4ec", "#2f5f8f"], "--better": ["#9bd8b1", "#2b6b45"], "--worse": ["#f3b5af", "#7d3732"],
  "--soft": ["#b4bbc8", "#6b7484"], "--worse-edge": ["#b3261e", "#ff9389"], "--mark": ["#1f6fb8", "#7cb8f5"],
};

function colour(name) {
  if (FILLS[name]) return FILLS[name][dark.matches ? 1 : 0];
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function themed(value) {
  if (Array.isArray(value)) return value.map(themed);
  if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v)]));
  return typeof value === "string" && value.startsWith("--") ? colour(value) : value;
}

const drawn = new Map();

function draw(div, figure) {
  if (typeof Plotly === "undefined") return;
  drawn.set(div, figure);
  const axis = { gridcolor: "--line", zerolinecolor: "--line", linecolor: "--line" };
  const { xaxis, yaxis, ...rest } = figure.layout;
  const layout = themed({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 44, r: 12, t: 12, b: 44 },
    font: { color: "--text", family: "system-ui, sans-serif", size: 13 }, hoverlabel: { align: "left" }, dragmode: false,
    xaxis: { ...axis, automargin: true, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  });
  return Plotly.react(div, themed(figure.traces), layout, {
    responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false,
  });
}

for (const div of document.querySelectorAll("[data-chart]")) {
  draw(div, JSON.parse(byId(div.dataset.chart).textContent));
}
dark.addEventListener("change", () => drawn.forEach((figure, div) => draw(div, figure)));

// ── tables ──

function fill(table, headers, rows) {
  const line = (cells, head) => {
    const tr = document.createElement("tr");
    cells.forEach((cell, n) => {
      const element = document.createElement(head || n === 0 ? "th" : "td");
      element.scope = head ? "col" : n === 0 ? "row" : "";
      const { text, kind } = cell && typeof cell === "object" ? cell : { text: cell };
      element.textContent = text === null || text === undefined || text === "" ? "–" : text;
      element.className = [kind, element.textContent.length < 24 && "short"].filter(Boolean).join(" ");
      tr.append(element);
    });
    return tr;
  };
  table.tHead.replaceChildren(line(headers, true));
  table.tBodies[0].replaceChildren(...rows.map((cells) => line(cells, false)));
}

function refilter(id) {
  const words = (document.querySelector(`[data-filter="${id}"]`)?.value || "").toLowerCase().split(/\s+/).filter(Boolean);
  const flagged = document.querySelector(`[data-flagged="${id}"]`)?.checked;
  let shown = 0;
  const rows = [...byId(id).tBodies[0].rows];
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word)) || Boolean(flagged && !row.classList.contains("flagged"));
    shown += !row.hidden;
  }
  document.querySelector(`[data-count="${id}"]`).textContent = `${shown} of ${rows.length}`;
}

for (const input of document.querySelectorAll("[data-filter], [data-flagged]")) {
  const id = input.dataset.filter || input.dataset.flagged;
  input.addEventListener("input", () => refilter(id));
}

// ── series ──

const PAGE = 50;

async function showSeries(slug) {
  let data;
  try { data = await load(`series:${slug}`, `data/series/${encodeURIComponent(slug)}.js`); } catch { byId("series-note").textContent = "This series could not be loaded."; return; }
  const escape = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const points = data.points, many = points.length > 120;
  const x = points.map((p) => p[3]), y = points.map((p) => p[4]);
  const hover = points.map((p) => `${p[0]} ${p[1]}<br>${escape(p[2]).slice(0, 70)}<br>${p[4].toFixed(4)} ms [${p[5].toFixed(4)}, ${p[6].toFixed(4)}], ${p[7].toFixed(1)} TFLOPS`);
  const main = {
    type: "scatter", mode: "lines+markers", name: "measured", x, y, hovertext: hover, hoverinfo: "text",
    line: { color: "--mark", width: 1.5, shape: "hv" }, marker: { color: "--mark", size: many ? 4 : 7 },
  };
  if (!many) main.error_y = { type: "data", symmetric: false, color: "--soft", thickness: 1.5, array: points.map((p) => p[6] - p[4]), arrayminus: points.map((p) => p[4] - p[5]) };
  const traces = [main];
  if (many) {
    traces.unshift(
      { type: "scatter", mode: "lines", x, y: points.map((p) => p[5]), line: { width: 0 }, hoverinfo: "skip", showlegend: false },
      { type: "scatter", mode: "lines", x, y: points.map((p) => p[6]), line: { width: 0 }, fill: "tonexty", fillcolor: "rgba(128,140,160,.28)", hoverinfo: "skip", name: "99 % interval" });
  }
  const turns = points.map((p, n) => [p, n]).filter(([p]) => p[8]);
  traces.push({
    type: "scatter", mode: "markers", name: "change point", x: turns.map(([p]) => p[3]), y: turns.map(([p]) => p[4]),
    hovertext: turns.map(([p, n], k) => `change: ${escape(data.changes[k][2])} ${escape(data.changes[k][3])}<br>${hover[n]}`), hoverinfo: "text",
    marker: { symbol: "diamond", size: 13, color: turns.map((_, k) => data.changes[k][2].endsWith("slower") ? "--worse" : "--better"), line: { width: 1.5, color: "--text" } },
  });
  await draw(byId("series-chart"), {
    traces,
    layout: {
      height: 400, hovermode: "closest", legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      xaxis: { title: { text: `first-parent commit, of ${data.commits}` }, tickformat: "d", ...(x[x.length - 1] - x[0] < 8 && { dtick: 1 }) }, yaxis: { title: { text: "ms a launch" }, automargin: true, tickformat: ".6~g" },
    },
  });
  const thinned = data.points.length < data.all ? ` ${data.points.length} of ${data.all} measurements are shown; change points and their neighbours all are.` : "";
  const left = data.void ? ` ${data.void} that must not be judged are left out.` : "";
  const by = data.by === "control" ? "Change points are searched in the ratio to the control." : "Change points are searched in the time as measured.";
  const count_of = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
  byId("series-note").textContent = `${count_of(data.all, "measurement")}, ${count_of(data.changes.length, "change point")}. ${by}${thinned}${left}`;
  byId("turns").hidden = data.changes.length === 0;
  fill(byId("changes"), ["commit", "date", "time", "99 % interval", "p", "subject"],
    data.changes.map(([commit, date, size, ...more]) => [commit, date, { text: size, kind: size.endsWith("slower") ? "worse" : "better" }, ...more]));
  let count = PAGE;
  const rows = points.toReversed ? points.toReversed() : [...points].reverse();
  const more = byId("more");
  const show = () => {
    fill(byId("points"), ["commit", "date", "ms", "99 % interval", "TFLOPS", "card, driver", "subject"],
      rows.slice(0, count).map((p) => [p[0], p[1], p[4].toFixed(4), `[${p[5].toFixed(4)}, ${p[6].toFixed(4)}]`, p[7].toFixed(1), `${p[9]}, ${p[10]}`, p[2]]));
    more.hidden = count >= rows.length;
  };
  more.onclick = () => { count += 10 * PAGE; show(); };
  show();
}

if (byId("series-list")) {
  const list = JSON.parse(byId("series-list").textContent);
  const selects = [...byId("choose").querySelectorAll("select")];
  const wanted = decodeURIComponent(location.hash.slice(1));
  let chosen = list.find((one) => one.slug === wanted) || list.reduce((best, one) => (one.newest[0] - best.newest[0] || one.newest[1] - best.newest[1]) > 0 ? one : best);
  const refresh = () => {
    selects.forEach((select, n) => {
      const fitting = list.filter((one) => one.axes.slice(0, n).every((value, k) => value === chosen.axes[k]));
      const values = [...new Set(fitting.map((one) => one.axes[n]))];
      select.replaceChildren(...values.map((value) => new Option(value, value, false, value === chosen.axes[n])));
      select.disabled = values.length < 2;
    });
    showSeries(chosen.slug);
  };
  selects.forEach((select, n) => select.addEventListener("change", () => {
    const before = [...chosen.axes.slice(0, n), select.value];
    const fitting = list.filter((one) => before.every((value, k) => value === one.axes[k]));
    const alike = (one) => one.axes.filter((value, k) => value === chosen.axes[k]).length;
    chosen = fitting.reduce((best, one) => (alike(one) > alike(best) ? one : best), fitting[0]);
    history.replaceState(null, "", `#${encodeURIComponent(chosen.slug)}`);
    refresh();
  }));
  window.addEventListener("hashchange", () => {
    const found = list.find((one) => one.slug === decodeURIComponent(location.hash.slice(1)));
    if (found && found !== chosen) { chosen = found; refresh(); }
  });
  refresh();
}

// ── compare ──

if (byId("pick-versions")) {
  load("versions", "data/versions.js").then(({ facts, targets }) => {
    const form = byId("pick-versions");
    const names = [...new Set(Object.values(targets).flatMap((rows) => Object.keys(rows)))];
    for (const [n, select] of [form.a, form.b].entries()) {
      select.replaceChildren(...names.map((name) => new Option(name)));
      select.selectedIndex = Math.max(0, names.length - 2 + n);
    }
    const show = () => {
      const rows = [];
      for (const [target, known] of Object.entries(targets)) {
        const [a, b] = [known[form.a.value], known[form.b.value]];
        if (!a && !b) continue;
        facts.forEach((fact, n) => {
          const [from, to] = [a?.[n] ?? "", b?.[n] ?? ""];
          if (from || to) rows.push([target, fact, from, { text: to, kind: from !== to ? "differs" : "" }]);
        });
      }
      fill(byId("versions-table"), ["target", "fact", form.a.value, form.b.value], rows);
    };
    form.addEventListener("change", show);
    show();
  }, () => { byId("versions-table").caption.textContent = "The versions could not be loaded."; });
}

if (byId("pick-commits")) {
  const form = byId("pick-commits"), note = byId("commits-note");
  load("commits", "data/commits.js").then(({ standings, commits }) => {
    if (!commits.length) { note.textContent = "No commit of this branch has a record yet."; return; }
    byId("commits").replaceChildren(...commits.slice(-200).reverse().map(([hash, date, subject]) => new Option(`${date} ${subject}`, hash)));
    form.a.value = commits[Math.max(0, commits.length - 2)][0];
    form.b.value = commits[commits.length - 1][0];
    const find = (text) => text.length < 4 ? -1 : commits.findIndex(([hash]) => text.startsWith(hash) || hash.startsWith(text));
    const state = (at) => {
      const found = {};
      for (let n = 0; n <= at; n++) Object.assign(found, commits[n][3]);
      return found;
    };
    const show = () => {
      const [a, b] = [find(form.a.value.trim()), find(form.b.value.trim())];
      if (a < 0 || b < 0) { note.textContent = `No recorded commit begins with ${a < 0 ? form.a.value : form.b.value}.`; fill(byId("commits-table"), [], []); return; }
      const [before, after] = [state(a), state(b)];
      const rows = [];
      for (const place of [...new Set([...Object.keys(before), ...Object.keys(after)])].sort((p, q) => p.localeCompare(q, "en", { numeric: true }))) {
        const [from, to] = [standings[before[place]], standings[after[place]]];
        if (before[place] === after[place] || (!from && !to)) continue;
        const cell = (n) => from && to && from[n] === to[n] ? from[n] : `${from?.[n] ?? "–"} → ${to?.[n] ?? "–"}`;
        const verdict = !from ? "new" : !to ? "gone" : to[9].length ? `does not build: ${to[9][0]}` : from[0] === to[0] ? "same code" : "changed";
        let change = "";
        if (from?.[8] && to?.[8] && from[8][0] === to[8][0] && from[7]?.[0] === to[7]?.[0] && from[7]?.[1] === to[7]?.[1]) {
          const per = 100 * Math.expm1(to[8][1] - from[8][1]);
          change = { text: `${per >= 0 ? "+" : ""}${per.toFixed(2)}%`, kind: per > 0 ? "worse" : "better" };
        }
        const ms = (side) => side?.[7] ? side[7][2].toFixed(4) : "–";
        rows.push([place, verdict, from?.[7] || to?.[7] ? `${ms(from)} → ${ms(to)}` : "", change, cell(1), cell(2), cell(3), cell(4), cell(5), cell(6)]);
      }
      note.textContent = `${commits[a][1]} “${commits[a][2]}” → ${commits[b][1]} “${commits[b][2]}”: ${rows.length} differ.`;
      fill(byId("commits-table"), ["version, target", "is", "ms", "change in time", "registers", "spill B", "smem B", "CTAs/SM", "path", "nvcc"], rows);
    };
    form.addEventListener("input", show);
    form.addEventListener("submit", (event) => { event.preventDefault(); show(); });
    byId("swap").addEventListener("click", () => { [form.a.value, form.b.value] = [form.b.value, form.a.value]; show(); });
    show();
  }, () => { note.textContent = "The commits could not be loaded."; });
}
