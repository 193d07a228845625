// Two series over the same time, with a mark where light was moved and one where the job changed. Drawn by uPlot.
const WINDOWS = [60, 180, 600];
const STALE_MS = 120_000;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Chart {
  constructor(root, { unit, gap, points, empty }) {
    Object.assign(this, { root, unit, gap, points });
    this.values = new Map();
    this.marks = [];
    this.ringChanges = [];
    this.window = WINDOWS[1];
    this.empty = document.createElement("p");
    this.empty.className = "empty";
    this.empty.textContent = empty;
    this.root.append(this.empty);
    this.build();
    new ResizeObserver(() => this.plot.setSize(this.size())).observe(root);
  }

  size() {
    return { width: Math.max(120, this.root.clientWidth), height: Math.max(60, this.root.clientHeight) };
  }

  build() {
    this.plot?.destroy();
    const letters = parseFloat(getComputedStyle(document.body).fontSize) * 0.82;
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 }, font: `${Math.round(letters)}px system-ui, sans-serif` };
    const line = css("--accent");
    this.plot = new uPlot({
      ...this.size(),
      padding: [letters * 1.5, null, null, null], // the marks' labels stand there, clear of grid and curve
      cursor: { y: false, points: { show: false } },
      legend: { show: false },
      scales: { x: { time: true, range: () => [this.now() - this.window, this.now()] }, y: { range: (_, low, high) => [0, (high || 1) * 1.25] } },
      axes: [{ ...axis, size: 30, space: () => (this.root.clientWidth < 500 ? 62 : 95), values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toLocaleTimeString("en-GB")) }, { ...axis, size: 58, space: 20 }],
      series: [{}, { stroke: line, width: 2, fill: this.points ? undefined : `${line}33`, spanGaps: false, points: this.points ? { size: 5, fill: line } : { show: false } }],
      hooks: { draw: [(plot) => this.drawMarks(plot)] },
    }, [[], []], this.root);
    this.draw();
  }

  // The right end (s): now, but where nothing came for long the last that came.
  now() {
    return this.until ?? Date.now() / 1000;
  }

  drawMarks(plot) {
    const { ctx } = plot, { left, top, width, height } = plot.bbox;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, 0, width, top + height);
    ctx.clip();
    ctx.strokeStyle = ctx.fillStyle = css("--mark");
    ctx.lineWidth = 2 * devicePixelRatio;
    ctx.font = `${parseFloat(getComputedStyle(document.body).fontSize) * 0.82 * devicePixelRatio}px system-ui, sans-serif`;
    const at = (ms) => plot.valToPos(ms / 1000, "x", true), dot = devicePixelRatio;
    const changed = new Set(this.ringChanges.map((ringChange) => ringChange.run)); // what the job lost is written there, with the dark time in it
    const marks = this.marks.map((mark) => ({ x: at(mark.at), message: changed.has(mark.run) ? [] : [mark.dark_ms == null ? mark.status ?? "moving" : `dark ${mark.dark_ms.toFixed(0)} ms`] }));
    for (const ringChange of this.ringChanges) {
      const message = ringChange.message.split(";")[0], short = message.split(":")[0];
      marks.push({ x: at(ringChange.at), ringChange: true, message: [message, short, short.replace("job lost ", "")] });
    }
    const taken = marks.filter((mark) => mark.ringChange).map(({ x }) => [x, x]); // labels share one line: the latest ringChange has its own first
    const drawn = marks.filter((mark) => mark.x >= left && mark.x <= left + width).sort((a, b) => Boolean(b.ringChange) - Boolean(a.ringChange) || b.x - a.x);
    for (const { x, ringChange, message } of drawn) {
      ctx.strokeStyle = ctx.fillStyle = css(ringChange ? "--ring-change" : "--mark");
      ctx.setLineDash(ringChange ? [] : [6 * dot, 4 * dot]);
      ctx.beginPath();
      ctx.moveTo(x, top);
      ctx.lineTo(x, top + height);
      ctx.stroke();
      if (ringChange) {
        ctx.beginPath();
        ctx.moveTo(x - 5 * dot, top - 5 * dot);
        ctx.lineTo(x + 5 * dot, top - 5 * dot);
        ctx.lineTo(x, top + 5 * dot);
        ctx.fill();
      }
      this.label(ctx, message, x, left, left + width, top, taken);
    }
    ctx.restore();
  }

  // Write the longest of `words` for which there is room to the right of a mark, or to its left.
  label(ctx, message, x, from, to, top, taken) {
    const gap = 9 * devicePixelRatio;
    for (const reply of message) {
      const wide = ctx.measureText(reply).width;
      for (const begin of [x + gap, x - gap - wide]) {
        const end = begin + wide;
        if (begin < from || end > to || taken.some(([a, b]) => begin < b + gap && end > a - gap)) continue;
        taken.push([begin, end]);
        ctx.textAlign = "left";
        return void ctx.fillText(reply, begin, top - 4 * devicePixelRatio);
      }
    }
  }

  add(points, whole = false) {
    if (whole) this.values.clear();
    for (const [at, value] of points) this.values.set(at, value);
    this.draw();
  }

  draw() {
    const times = [...this.values.keys()].sort((a, b) => a - b);
    const from = ((times.at(-1) ?? 0) / 1000 - WINDOWS.at(-1)) * 1000;
    for (const t of times) if (t < from - 60_000) this.values.delete(t);
    const x = [], y = [];
    let last = null, latest = null;
    for (const t of times) {
      if (last !== null && t - last > this.gap) {
        x.push((last + 1) / 1000);
        y.push(null);
      }
      x.push(t / 1000);
      y.push(this.values.get(t));
      [last, latest] = [t, this.values.get(t)];
    }
    this.newest = last;
    this.latest = last !== null && Date.now() - last < 10_000 ? latest : null;
    this.empty.hidden = last !== null && last > (this.now() - this.window) * 1000;
    this.plot.setData([x, y]);
  }

  zoom(step) {
    this.window = WINDOWS[Math.min(WINDOWS.length - 1, Math.max(0, WINDOWS.indexOf(this.window) + step))];
    this.draw();
    return this.window;
  }
}

// All charts end at one time: now, or where nothing came for long where the newest of them ends.
export function together(charts) {
  const newest = Math.max(...charts.map((chart) => chart.newest ?? -Infinity));
  const until = Number.isFinite(newest) && Date.now() - newest > STALE_MS ? newest / 1000 + 3 : null;
  for (const chart of charts) {
    chart.until = until;
    chart.draw();
  }
  return until;
}
