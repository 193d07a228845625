// The fabric: hosts on a circle, a curve per circuit, devices as a row of buttons.
const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's palette, told apart by most eyes; red is left for faults, purple for dark.
const HUES = { light: ["#0072b2", "#c76a00", "#00805c", "#8a6d00", "#3b4cc0", "#a8527f"], dark: ["#56b4e9", "#ffab40", "#2fd0a0", "#f0e442", "#9aa6ff", "#f0a6cf"] };
const RADIUS = 372;
const HOLD_MS = 400; // dark is shown for so long at least: an eye does not see 50 ms

const shape = (name, attributes, parent) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent?.append(made);
  return made;
};
const at = (angle, radius) => [radius * Math.sin(angle), -radius * Math.cos(angle)];

export class Fabric {
  constructor(root) {
    this.arcs = root.querySelector("#arcs");
    this.copies = root.querySelector("#copies");
    this.hosts = root.querySelector("#hosts");
    this.list = root.querySelector("#devices");
    this.nothing = root.querySelector("#nothing");
    this.title = root.querySelector("#picture-title");
    this.places = new Map();
    this.drawn = new Map();
    this.dots = new Map();
    this.only = null;
  }

  hue(device) {
    const hues = HUES[document.documentElement.dataset.theme] ?? HUES.light;
    return hues[Math.max(0, this.devices.indexOf(device)) % hues.length];
  }

  // The lab: hosts and devices, which change only with the inventory.
  lay(lab) {
    this.devices = lab.devices.map((d) => d.name);
    this.places.clear();
    this.dots.clear();
    this.hosts.replaceChildren();
    this.rateTexts = new Map();
    const step = (2 * Math.PI) / Math.max(1, lab.hosts.length);
    const small = lab.hosts.length > 28;
    this.thin = small ? 1.8 : 3.2;
    lab.hosts.forEach((host, n) => {
      const middle = n * step;
      const width = Math.min(0.72 * step, 0.075 * host.ports.length);
      const group = shape("g", { "data-host": host.name }, this.hosts);
      const [x1, y1] = at(middle - width / 2, RADIUS + 9), [x2, y2] = at(middle + width / 2, RADIUS + 9);
      shape("path", { d: `M${x1} ${y1}A${RADIUS + 9} ${RADIUS + 9} 0 0 1 ${x2} ${y2}`, class: "host" }, group);
      host.ports.forEach((port, k) => {
        const share = host.ports.length > 1 ? k / (host.ports.length - 1) - 0.5 : 0;
        const angle = middle + share * width;
        const [cx, cy] = at(angle, RADIUS + 9);
        this.places.set(`${host.name}:p${port}`, angle);
        const dot = shape("circle", { cx, cy, r: small ? 4 : 7, class: "port" }, group);
        shape("title", {}, dot).textContent = `${host.name}:p${port}`;
        this.dots.set(`${host.name}:p${port}`, dot);
      });
      if (small) this.#spoke(host.name, middle, group);
      else this.#label(host.name, middle, group);
    });
    this.list.replaceChildren(...lab.devices.map((device, n) => this.#tile(device, n)));
  }

  // Beside the circle, with room for a rate below.
  #label(host, middle, group) {
    const [x, y] = at(middle, RADIUS + 42);
    const side = Math.abs(x) < 60 ? "middle" : x > 0 ? "start" : "end";
    const lift = y < -RADIUS * 0.8 ? -14 : y > RADIUS * 0.8 ? 22 : 2;
    shape("text", { x, y: y + lift, "text-anchor": side }, group).textContent = host;
    this.rateTexts.set(host, shape("text", { x, y: y + lift + 21, "text-anchor": side, class: "rate" }, group));
  }

  // Where there are many: along the radius.
  #spoke(host, middle, group) {
    const [x, y] = at(middle, RADIUS + 32);
    const rotated = (middle * 180) / Math.PI - (middle < Math.PI ? 90 : 270);
    const text = shape("text", { x, y, "text-anchor": middle < Math.PI ? "start" : "end", "dominant-baseline": "central" }, group);
    text.setAttribute("transform", `rotate(${rotated} ${x} ${y})`);
    text.classList.add("many");
    text.textContent = host;
  }

  #tile(device, n) {
    const item = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    button.dataset.device = device.name;
    button.setAttribute("aria-pressed", "false");
    if (n < 9) button.setAttribute("aria-keyshortcuts", String(n + 1));
    const speed = device.speed !== 1 ? `, ${device.speed} times as fast as a real one` : "";
    button.title = `${device.name}: ${device.driver}${speed}; show its circuits alone`;
    const swatch = document.createElement("span"), name = document.createElement("span"), phase = document.createElement("span");
    swatch.className = "swatch";
    name.textContent = device.name;
    phase.className = "phase";
    phase.textContent = "–";
    button.append(swatch, name, phase);
    button.addEventListener("click", () => this.single(device.name));
    item.append(button);
    return item;
  }

  single(device) {
    this.only = this.only === device ? null : device;
    for (const button of this.list.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.device === this.only));
    for (const arc of this.drawn.values()) arc.group.classList.toggle("off", this.only !== null && !arc.devices.includes(this.only));
  }

  // All circuits: those of both directions of a duplex link are one curve.
  circuits(list, owners) {
    const wanted = new Map();
    for (const circuit of list) {
      const key = [circuit.a, circuit.b].sort().join("|");
      const there = wanted.get(key);
      if (there) there.ids.set(circuit.id, circuit.state);
      else wanted.set(key, { ...circuit, ids: new Map([[circuit.id, circuit.state]]) });
    }
    for (const [key, arc] of this.drawn) if (!wanted.has(key)) this.#leave(key, arc);
    for (const [key, circuit] of wanted) {
      let arc = this.drawn.get(key);
      if (!arc) {
        const group = shape("g", { class: "arc", "data-circuit": key }, this.arcs);
        const halo = shape("path", { class: "halo" }, group), line = shape("path", { class: "line" }, group);
        arc = { group, halo, line, title: shape("title", {}, group), since: 0 };
        this.drawn.set(key, arc);
      }
      arc.leaving = false;
      Object.assign(arc, { a: circuit.a, b: circuit.b, ids: circuit.ids, devices: circuit.devices });
      arc.message = `${circuit.a} ${circuit.ids.size > 1 ? "–" : "→"} ${circuit.b}, ${circuit.path.join(", ")}, ${circuit.owner}`;
      const curve = this.#curve(circuit.a, circuit.b);
      arc.halo.setAttribute("d", curve);
      arc.line.setAttribute("d", curve);
      arc.group.style.setProperty("--thick", this.thin);
      arc.group.classList.toggle("off", this.only !== null && !arc.devices.includes(this.only));
      if (owners.size > 1) arc.title.textContent = arc.message;
      this.#show(arc);
    }
    this.recolour();
    this.count();
  }

  states(changed) {
    const byId = new Map();
    for (const arc of this.drawn.values()) for (const id of arc.ids.keys()) byId.set(id, arc);
    for (const [id, state] of Object.entries(changed)) {
      const arc = byId.get(id);
      if (!arc) continue;
      arc.ids.set(id, state);
      this.#show(arc);
    }
    this.count();
  }

  #show(arc) {
    const all = [...arc.ids.values()];
    const state = ["lost", "dark", "making", "waits", "in turn"].find((s) => all.includes(s)) ?? "lit";
    const was = arc.group.dataset.state;
    if (state === was) return clearTimeout(arc.timer);
    clearTimeout(arc.timer);
    const left = was === "dark" || was === "making" ? arc.since + HOLD_MS - performance.now() : 0;
    if (state === "lit" && left > 0 && !arc.scheduled) {
      arc.timer = setTimeout(() => this.#show(arc), left);
      return undefined;
    }
    if (state !== "lit" && was !== "dark" && was !== "making") arc.since = performance.now();
    arc.scheduled = state === "waits" || state === "in turn" || (arc.scheduled && was !== undefined);
    arc.group.dataset.state = state;
    arc.group.classList.toggle("fresh", state === "lit" && was !== undefined && !arc.scheduled);
    arc.title.textContent = `${arc.message}: ${state}`;
    return undefined;
  }

  // A circuit that is gone stays as a dark one for a moment.
  #leave(key, arc) {
    if (arc.leaving) return;
    arc.leaving = true;
    for (const id of arc.ids.keys()) arc.ids.set(id, "dark");
    this.#show(arc);
    clearTimeout(arc.timer);
    arc.timer = setTimeout(() => {
      if (!arc.leaving) return;
      arc.group.remove();
      if (this.drawn.get(key) === arc) this.drawn.delete(key);
    }, Math.max(0, arc.since + HOLD_MS - performance.now()));
  }

  #curve(a, b) {
    const [from, to] = [this.places.get(a) ?? 0, this.places.get(b) ?? 0];
    const apart = Math.abs(Math.atan2(Math.sin(to - from), Math.cos(to - from)));
    const inner = (RADIUS - 4) * Math.max(0.12, 0.86 - 0.72 * (apart / Math.PI));
    const [x1, y1] = at(from, RADIUS - 4), [x2, y2] = at(to, RADIUS - 4), [c1, d1] = at(from, inner), [c2, d2] = at(to, inner);
    const p = (v) => v.toFixed(1);
    return `M${p(x1)} ${p(y1)}C${p(c1)} ${p(d1)} ${p(c2)} ${p(d2)} ${p(x2)} ${p(y2)}`;
  }

  recolour() {
    for (const arc of this.drawn.values()) arc.group.style.setProperty("--hue", this.hue(arc.devices[0]));
    for (const button of this.list.querySelectorAll("button")) button.querySelector(".swatch").style.background = this.hue(button.dataset.device);
  }

  phases(devices) {
    for (const [name, device] of Object.entries(devices)) {
      const button = this.list.querySelector(`[data-device="${CSS.escape(name)}"]`);
      if (!button) continue;
      button.dataset.phase = device.phase;
      button.querySelector(".phase").textContent = device.phase + (device.message && device.phase !== "up" ? ` ${device.message.slice(0, 40)}` : "");
    }
  }

  // What these hosts receive is copied to another: a dotted line from each.
  copied(to, taps) {
    this.copies.replaceChildren();
    const middles = new Map([...this.hosts.children].map((group, n, all) => [group.dataset.host, (n * 2 * Math.PI) / all.length]));
    for (const group of this.hosts.children) group.dataset.role = taps.length && group.dataset.host === to ? "follower" : taps.includes(group.dataset.host) ? "tapped" : "";
    if (!middles.has(to)) return;
    const [x2, y2] = at(middles.get(to), RADIUS - 14);
    for (const tap of taps.filter((host) => middles.has(host))) {
      const [x1, y1] = at(middles.get(tap), RADIUS - 14);
      const line = shape("path", { d: `M${x1.toFixed(1)} ${y1.toFixed(1)}Q0 0 ${x2.toFixed(1)} ${y2.toFixed(1)}`, class: "copy" }, this.copies);
      shape("title", {}, line).textContent = `what ${tap} receives is copied to ${to}, over the management network`;
    }
  }

  // Mb/s by port: the width of a curve is the rate of its busier end against the busiest port of all.
  rates(ports) {
    const busiest = Math.max(1, ...[...ports.values()].map(([sent]) => sent ?? 0));
    for (const arc of this.drawn.values()) {
      const rate = Math.max(ports.get(arc.a)?.[0] ?? 0, ports.get(arc.b)?.[0] ?? 0);
      arc.group.style.setProperty("--thick", (this.thin + (2.2 * this.thin * rate) / busiest).toFixed(1));
    }
    for (const [host, text] of this.rateTexts) {
      let sent = 0, known = false;
      for (const [port, [rate]] of ports) if (port.startsWith(`${host}:`) && rate !== null) [sent, known] = [sent + rate, true];
      text.textContent = known ? `${sent < 10 ? sent.toFixed(1) : Math.round(sent)} Mb/s` : "";
    }
  }

  count() {
    const states = [...this.drawn.values()].filter((arc) => !arc.leaving).flatMap((arc) => [...arc.ids]);
    const how = (state) => states.filter(([, s]) => s === state).length;
    this.lit = how("lit");
    this.scheduled = how("in turn");
    this.total = this.lit + how("lost") + Math.max(how("dark"), how("making")); // what is moved is there twice
    const heard = new Map();
    for (const [id, s] of states) if (s !== "waits") heard.set(id.split("->")[1], s === "lit" || s === "in turn" ? "1" : s === "lost" ? "0" : "");
    for (const [port, dot] of this.dots) dot.dataset.lit = heard.get(port) ?? "";
    this.title.textContent = `${this.lit} of ${this.total} circuits carry light${this.scheduled ? `, ${this.scheduled} have turns` : ""}`;
    this.nothing.hidden = states.length > 0;
  }
}
