// What a panel does with the frames it is given before it draws them: transformations and field options, by Grafana's
// data library, which the caller hands over (Node and a page load it each in their way).
'use strict';

const settings = ['unit', 'decimals', 'min', 'max', 'noValue', 'displayName', 'color', 'mappings', 'thresholds', 'links'];
const custom = ['drawStyle', 'lineWidth', 'fillOpacity', 'showPoints', 'pointSize', 'spanNulls', 'stacking', 'width', 'minWidth'];

module.exports = (data) => {
  data.standardTransformersRegistry.setInit(() =>
    [...new Map(Object.values(data.standardTransformers).map((t) => [t.id, t])).values()].map((t) => ({
      id: t.id,
      name: t.name,
      transformation: async () => t,
    })),
  );
  const registry = new data.Registry(() =>
    [...settings, ...custom.map((name) => `custom.${name}`)].map((id) => ({
      id,
      path: id.replace('custom.', ''),
      name: id,
      isCustom: id.startsWith('custom.'),
      settings: {},
      override: () => null,
      editor: () => null,
      process: (value) => value,
      shouldApply: () => true,
      getItemsCount: () => 0,
    })),
  );
  const theme = data.createTheme();

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

  async function prepared(panel) {
    const given = panel.frames.map((frame) => data.toDataFrame(frame));
    return data.applyFieldOverrides({
      data: await transformed(given, panel.transformations),
      fieldConfig: panel.fieldConfig,
      fieldConfigRegistry: registry,
      replaceVariables: (text) => text,
      theme,
      timeZone: 'utc',
    });
  }

  return { prepared, registry, theme };
};
