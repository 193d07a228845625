// What knows the job's traffic: a mark each for its attachments, what it sends, loses and saves.
const element = (name, kind, parent) => {
  const made = document.createElement(kind);
  made.className = name;
  parent.append(made);
  return made;
};

// A strip of the latest iterations, or a bar; text next to it.
export function carried(root, data) {
  root.hidden = !data.marks.length;
  root.replaceChildren();
  for (const mark of data.marks) {
    const item = element("mark", "li", root);
    item.dataset.name = mark.name;
    item.dataset.bad = mark.bad;
    element("name", "b", item).textContent = mark.name;
    const message = element("message", "span", item);
    message.textContent = mark.message;
    item.title = `${mark.name}: ${mark.message}`;
    if (mark.cells) {
      const strip = element("cells", "span", item);
      for (const cell of mark.cells) element("cell", "span", strip).dataset.verdict = cell;
    } else if (mark.share !== null) {
      const bar = element("share", "span", item);
      element("fill", "span", bar).style.width = `${100 * mark.share}%`;
    }
  }
}
