// Runs panels' data through Grafana's own library as a panel would: transformations, field options, formatted text.
// stdin: [{title, transformations, fieldConfig, frames}]; stdout: [{title, error, frames: [{name, refId, fields}]}], field by field.
'use strict';
// A browser tells the locale; Node has no such object before version 21.
globalThis.navigator ??= { language: 'en-US', languages: ['en-US'] };
const data = require('@grafana/data');
globalThis.window ??= {}; // only now: while it loads, the library takes a window for a whole browser

data.standardTransformersRegistry.setInit(() =>
  [...new Map(Object.values(data.standardTransformers).map((t) => [t.id, t])).values()].map((t) => ({
    id: t.id,
    name: t.name,
    transformation: async () => t,
  })),
);
const settings = ['unit', 'decimals', 'min', 'max', 'noValue', 'displayName', 'color', 'mappings', 'thresholds', 'links'];
const registry = new data.Registry(() =>
  settings.map((id) => ({
    id,
    path: id,
    name: id,
    settings: {},
    override: () => null,
    editor: () => null,
    process: (value) => value,
    shouldApply: () => true,
    getItemsCount: () => 0,
  })),
);
const theme = data.createTheme();
const units = new Set(data.getValueFormats().flatMap((group) => group.submenu.map((item) => item.value)));

function transformed(frames, steps) {
  return new Promise((resolve, reject) => {
    const unknown = steps.filter((step) => !data.standardTransformersRegistry.getIfExists(step.id));
    if (unknown.length) {
      reject(new Error(`unknown transformation ${unknown[0].id}`));
    }
    const context = { interpolate: (text) => text };
    data.transformDataFrame(steps, frames, context).subscribe({ next: resolve, error: reject });
  });
}

async function show(panel) {
  const given = panel.frames.map((frame) => data.toDataFrame(frame));
  const made = await transformed(given, panel.transformations);
  const shown = data.applyFieldOverrides({
    data: made,
    fieldConfig: panel.fieldConfig,
    fieldConfigRegistry: registry,
    replaceVariables: (text) => text,
    theme,
    timeZone: 'utc',
  });
  return shown.map((frame) => ({
    name: frame.name,
    refId: frame.refId,
    fields: frame.fields.map((field) => {
      const values = Array.from(field.values);
      const last = values.findLast((value) => value !== null && value !== undefined);
      const unit = field.config.unit;
      const written = field.display ? field.display(last) : undefined;
      return {
        name: data.getFieldDisplayName(field, frame, shown),
        type: field.type,
        unit,
        unitKnown: unit === undefined || units.has(unit) || unit.startsWith('suffix:'), // one of our own words
        values: values.slice(0, 50),
        length: values.length,
        text: written ? data.formattedValueToString(written) : undefined,
        nothing: field.config.noValue,
        color: field.config.color,
      };
    }),
  }));
}

async function main() {
  const chunks = [];
  for await (const chunk of process.stdin) {
    chunks.push(chunk);
  }
  const out = [];
  for (const panel of JSON.parse(Buffer.concat(chunks).toString('utf8'))) {
    try {
      out.push({ title: panel.title, frames: await show(panel) });
    } catch (error) {
      out.push({ title: panel.title, error: String(error), frames: [] });
    }
  }
  process.stdout.write(JSON.stringify(out));
}

main();
