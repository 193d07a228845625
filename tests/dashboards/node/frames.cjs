// Runs panels' data through Grafana's own library as a panel would: transformations, field options, formatted text.
// stdin: [{title, transformations, fieldConfig, frames}]; stdout: [{title, error, frames: [{name, refId, fields}]}], field by field.
'use strict';
// A browser tells the locale; Node has no such object before version 21.
globalThis.navigator ??= { language: 'en-US', languages: ['en-US'] };
const data = require('@grafana/data');
globalThis.window ??= {}; // only now: while it loads, the library takes a window for a whole browser

const { prepared } = require('./panel.cjs')(data);
const units = new Set(data.getValueFormats().flatMap((group) => group.submenu.map((item) => item.value)));

async function show(panel) {
  const shown = await prepared(panel);
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
