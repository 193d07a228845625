// What `Table` wants of react-custom-scrollbars-2; its default import in an ES module is the whole module in a bundle.
export { Scrollbars as default } from './node_modules/react-custom-scrollbars-2/lib/index.js';
