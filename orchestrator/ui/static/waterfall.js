// Where the milliseconds of a change went: two charts, each on its own axis, as `testbed show` draws them.
const ms = (value) => (value < 99.95 ? value.toFixed(1) : Math.round(value).toLocaleString("en"));
const cell = (name, text, parent) => {
  const made = document.createElement("span");
  made.className = name;
  made.textContent = text;
  parent.append(made);
  return made;
};

function chart(title, rows, colours) {
  const box = document.createElement("div");
  box.className = "rows";
  if (!rows.length) return box;
  const begin = Math.min(...rows.map((r) => r.begin_ms)), end = Math.max(...rows.map((r) => r.begin_ms + r.ms));
  const span = end - begin || 1;
  cell("name head", title, box);
  cell("ms head", "ms", box);
  const axis = cell("head axis", "", box);
  cell("", "0", axis);
  cell("", ms(span), axis);
  for (const row of rows) {
    cell("name", row.name, box);
    cell("ms", ms(row.ms), box);
    const track = cell("track", "", box), bar = cell("bar", "", track);
    bar.style.left = `${(100 * (row.begin_ms - begin)) / span}%`;
    bar.style.width = `${(100 * row.ms) / span}%`;
    bar.style.background = colours[row.phase.replaceAll(" ", "_")] ?? colours.idle;
    bar.classList.toggle("failed", !row.ok);
    track.title = `${row.name}: ${row.ms.toFixed(2)} ms${row.ok ? "" : ", failed"}${row.detail ? `: ${row.detail}` : ""}`;
  }
  return box;
}

export function waterfall(root, heading, move, colours) {
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
  const parts = [chart("phase", move.phases, colours)];
  if (move.parts.length) parts.push(chart("device, hosts", move.parts, colours));
  const order = ["ack", "command", "dark", "power", "link", "route", "first_packet", "resume", "total"];
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
  root.style.setProperty("--lines", root.clientHeight ? move.phases.length + move.parts.length + parts.length + 1 : 12);
  root.replaceChildren(...parts);
}
