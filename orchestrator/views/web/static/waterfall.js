// Where the milliseconds of a change went: two charts, each on its own axis, as `testbed run show` draws them.
const ms = (value) => (value < 99.95 ? value.toFixed(1) : Math.round(value).toLocaleString("en"));
const cell = (name, text, parent) => {
  const made = document.createElement("span");
  made.className = name;
  made.textContent = text;
  parent.append(made);
  return made;
};

// Round times (ms) from 0 up to `span`: about so many as have room.
function ticks(span, most) {
  const rough = span / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  return Array.from({ length: Math.floor(span / step + 1e-9) + 1 }, (_, n) => n * step);
}
const tick = (value, span) => (value === 0 ? "0" : span >= 5000 ? `${+(value / 1000).toPrecision(6)} s` : `${+value.toPrecision(6)}`);

function chart(title, rows, colours) {
  const box = document.createElement("div");
  box.className = "rows";
  if (!rows.length) return box;
  const begin = Math.min(...rows.map((r) => r.begin_ms)), end = Math.max(...rows.flatMap((r) => r.bars.map(([at, took]) => at + took)));
  const span = end - begin || 1;
  cell("name head", title, box);
  cell("ms head", "ms", box);
  const axis = cell("head axis", "", box);
  for (const at of ticks(span, 5)) {
    const mark = cell(at > 0.93 * span ? "tick last" : "tick", tick(at, span), axis);
    mark.style.left = `${(100 * at) / span}%`;
  }
  for (const row of rows) {
    cell("name", row.name, box);
    cell("ms", ms(row.ms), box);
    const track = cell("track", "", box);
    for (const [at, took] of row.bars) {
      const bar = cell("bar", "", track);
      bar.style.left = `${(100 * (at - begin)) / span}%`;
      bar.style.width = `${(100 * took) / span}%`;
      bar.style.setProperty("--hue", colours[row.phase.replaceAll(" ", "_")] ?? colours.idle);
      bar.classList.toggle("failed", !row.ok);
      bar.classList.toggle("beside", Boolean(row.overlaps));
      bar.classList.toggle("growing", Boolean(row.growing));
    }
    const beside = row.overlaps ? ", beside the phases above" : row.growing ? " so far" : "";
    track.title = `${row.name}: ${row.ms.toFixed(2)} ms${beside}${row.ok ? "" : ", failed"}${row.detail ? `: ${row.detail}` : ""}`;
  }
  return box;
}

// The phases of a run, with those at work: from their begin until now.
function phases(move, run) {
  if (run?.status !== "running" || run.id !== move.run) return move.phases;
  const now = Date.now() - move.began;
  return [...move.phases, ...move.working.map(([name, begin]) => {
    const took = Math.max(0, now - begin);
    return { name, phase: name, begin_ms: begin, ms: took, ok: true, detail: "", bars: [[begin, took]], growing: true };
  })];
}

export function waterfall(root, heading, move, colours, run) {
  if (!move) {
    heading.textContent = "Last move";
    const empty = document.createElement("p");
    empty.className = "empty";
    empty.textContent = "Nothing was moved yet.\nIn a terminal: testbed up --topology PLAN";
    root.replaceChildren(empty);
    return;
  }
  const title = `${move.verb} ${move.plan}`.trim();
  heading.textContent = move.status === "running" ? `Now: ${title}` : `Last move: ${title || move.run}`;
  heading.append(" ");
  const small = document.createElement("small");
  small.textContent = `run ${move.run}${move.status && move.status !== "ok" ? `, ${move.status}` : ""}`;
  heading.append(small);
  const rows = phases(move, run);
  const parts = [chart("phase", rows, colours)];
  if (move.parts.length) parts.push(chart("device, hosts", move.parts, colours));
  const order = ["ack", "command", "dark", "power", "link", "route", "first_packet", "resume", "pause", "total"];
  const figures = order.filter((name) => `${name}_ms` in move.figures);
  if (figures.length) {
    const line = document.createElement("p");
    line.className = "figures";
    line.append(`${move.figures.n_circuits ?? "?"} circuits moved; ms: `);
    for (const name of figures) {
      const value = document.createElement("b");
      value.textContent = ms(move.figures[`${name}_ms`]);
      line.append(`${name.replace("_", " ")} `, value, name === figures.at(-1) ? "" : ", ");
    }
    parts.push(line);
  }
  // So many lines have to fit: the letters are as large as that allows.
  root.style.setProperty("--lines", root.clientHeight ? rows.length + move.parts.length + parts.length + 1 : 12);
  root.replaceChildren(...parts);
}
