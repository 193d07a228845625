// Draws a dashboard's panels with Grafana's own library: window.draw(panels, range) with what frames.cjs takes of a
// panel, its id, type, options and place besides. Returns what is seen, per panel.
import * as data from '@grafana/data';
import { BigValue, GlobalStyles, PanelChrome, Table, ThemeContext, TimeSeries, VizRepeater } from '@grafana/ui';
import { createRoot } from 'react-dom/client';
import panelsOf from '../node/panel.cjs';

const { prepared, registry, theme } = panelsOf(data);
data.standardFieldConfigEditorRegistry.setInit(() => registry.list());
const COLUMN = 66; // 24 of them are a window 1600 pixels wide
const ROW = 38; // Grafana's 30 and the gap of 8
const GAP = 8;
const ROWS = 12; // that a placeholder shows of a frame
const CALM_MS = 300;

// What the core panel adds where a dashboard says nothing.
function withDefaults(panel) {
  const { defaults, overrides } = panel.fieldConfig;
  const color = panel.type === 'timeseries' ? { mode: 'palette-classic' } : undefined;
  return { ...panel, fieldConfig: { defaults: { color, ...defaults }, overrides } };
}

// Its rules for fonts have to be there before the first text is measured.
createRoot(document.getElementById('styles')).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
  </ThemeContext.Provider>,
);

// What is written on canvases, which no page can be asked for later: per panel, and what of it does not fit.
const written = {};
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
  const panel = this.canvas.closest('[data-panel]')?.dataset.panel;
  const seen = (written[panel] ??= { canvas: new Set(), cut: new Set() });
  seen.canvas.add(String(text));
  const box = this.measureText(text);
  const at = this.getTransform();
  const fits = [-box.actualBoundingBoxLeft, box.actualBoundingBoxRight].every((along) => {
    const end = at.transformPoint({ x: x + along, y });
    return end.x >= -1 && end.y >= -1 && end.x <= this.canvas.width + 1 && end.y <= this.canvas.height + 1;
  });
  if (!fits) {
    seen.cut.add(String(text));
  }
  return fillText.call(this, text, x, y, ...rest);
};

// Whether a box that hides what sticks out hides a part of this text; what can be scrolled is not hidden.
function isCut(node, root) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const text = range.getBoundingClientRect();
  for (let box = node.parentElement; box !== root.parentElement; box = box.parentElement) {
    const { overflowX, display } = getComputedStyle(box);
    if (overflowX === 'auto' || overflowX === 'scroll') {
      return false;
    }
    const { left, right } = box.getBoundingClientRect();
    const hides = box === root || (overflowX !== 'visible' && display !== 'inline');
    if (hides && (text.left < left - 1 || text.right > right + 1)) {
      return true;
    }
  }
  return false;
}

function seen(root) {
  const nodes = document.createNodeIterator(root, NodeFilter.SHOW_TEXT, (node) =>
    node.textContent.trim() && node.parentElement.tagName !== 'STYLE' ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_SKIP,
  );
  const [texts, cut] = [[], []];
  for (let node = nodes.nextNode(); node; node = nodes.nextNode()) {
    texts.push(node.textContent.trim());
    const hidden = node.parentElement.offsetWidth <= 1; // for screen readers
    if (!hidden && !node.parentElement.closest('.placeholder') && isCut(node, root)) {
      cut.push(node.textContent.trim());
    }
  }
  const canvas = root.querySelector('canvas');
  const pixels = canvas ? canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data : [];
  let inked = 0;
  for (let at = 3; at < pixels.length; at += 4) {
    inked += pixels[at] > 0;
  }
  const drawn = written[root.dataset.panel];
  return {
    canvas: [...(drawn?.canvas ?? [])],
    texts,
    cut: [...cut, ...(drawn?.cut ?? [])],
    inked: pixels.length ? (4 * inked) / pixels.length : 0,
  };
}

function Stat({ panel, frames, width, height }) {
  const { reduceOptions, orientation, graphMode, colorMode, textMode, justifyMode, wideLayout } = panel.options;
  const values = () =>
    data.getFieldDisplayValues({
      fieldConfig: panel.fieldConfig,
      reduceOptions,
      replaceVariables: (text) => text,
      theme,
      data: frames,
      sparkline: graphMode !== 'none',
      timeZone: 'utc',
    });
  const one = ({ value, width, height, count }) => (
    <BigValue
      value={value.display}
      sparkline={value.sparkline}
      {...{ width, height, count, theme, colorMode, graphMode, textMode, justifyMode, wideLayout }}
    />
  );
  return (
    <VizRepeater
      {...{ width, height, orientation }}
      getValues={values}
      renderValue={one}
      source={frames}
      autoGrid={true}
      renderCounter={0}
    />
  );
}

// What core panels show instead of an empty chart, in the words of the dashboard.
const Nothing = ({ panel }) => <div className="nothing">{panel.fieldConfig.defaults.noValue ?? 'No data'}</div>;

function asText(frame) {
  const fields = frame.fields;
  const line = (n) => fields.map((f) => data.formattedValueToString(f.display(f.values[n]))).join(' | ');
  const lines = Array.from({ length: Math.min(ROWS, frame.length) }, (_, n) => line(n));
  return [fields.map((f) => data.getFieldDisplayName(f, frame)).join(' | '), ...lines].join('\n');
}

const Placeholder = ({ panel, frames }) => (
  <div className="placeholder">
    <p>{`${panel.type}: Grafana's library does not draw it; its data:`}</p>
    <div className="data">{frames.slice(0, ROWS).map(asText).join('\n')}</div>
  </div>
);

function Inside({ panel, frames, range, ...size }) {
  const timeRange = { from: data.dateTime(range[0]), to: data.dateTime(range[1]), raw: { from: '', to: '' } };
  if (panel.type === 'stat') {
    return <Stat {...{ panel, frames }} {...size} />;
  }
  if (panel.type === 'table') {
    const empty = new data.MutableDataFrame();
    return <Table data={frames[0] ?? empty} fieldConfig={panel.fieldConfig} timeRange={timeRange} {...size} />;
  }
  if (!frames.length) {
    return <Nothing panel={panel} />;
  }
  if (panel.type === 'timeseries') {
    return <TimeSeries {...{ frames, timeRange }} legend={panel.options.legend} timeZone="utc" {...size} />;
  }
  return <Placeholder {...{ panel, frames }} />;
}

function Panel({ panel, frames, range }) {
  const { x, y, w, h } = panel.gridPos;
  const [width, height] = [w * COLUMN - GAP, h * ROW - GAP];
  const style = { position: 'absolute', left: x * COLUMN + GAP, top: y * ROW + GAP, width, height };
  if (panel.type === 'row') {
    return <div className="heading" style={style}>{panel.title}</div>;
  }
  return (
    <div style={style} data-panel={panel.id}>
      <PanelChrome title={panel.title.replace(/\$\{\w+\}/g, 'All')} description={panel.description} width={width} height={height}>
        {(width, height) => <Inside {...{ panel, frames, range, width, height }} />}
      </PanelChrome>
    </div>
  );
}

// Resolves when nothing has changed for a while, on the page and on its canvases.
function still(place) {
  return new Promise((resolve) => {
    let last = performance.now();
    const observer = new MutationObserver(() => (last = performance.now()));
    observer.observe(place, { childList: true, subtree: true, attributes: true, characterData: true });
    const look = () => {
      if (performance.now() - last < CALM_MS) {
        requestAnimationFrame(look);
      } else {
        observer.disconnect();
        resolve();
      }
    };
    look();
  });
}

window.draw = async (panels, range) => {
  const all = await Promise.all(panels.map(async (panel) => ({ panel, frames: await prepared(withDefaults(panel)) })));
  const bottom = Math.max(...panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  const place = document.getElementById('dashboard');
  place.style.cssText = `position: relative; width: ${24 * COLUMN + GAP}px; height: ${bottom * ROW + GAP}px`;
  await Promise.all([400, 500].map((weight) => document.fonts.load(`${weight} 14px Inter`)));
  createRoot(place).render(
    <ThemeContext.Provider value={theme}>
      {all.map((each) => (
        <Panel key={each.panel.id} range={range} {...each} />
      ))}
    </ThemeContext.Provider>,
  );
  await still(place);
  return Object.fromEntries([...document.querySelectorAll('[data-panel]')].map((root) => [root.dataset.panel, seen(root)]));
};
