// Exports for Markdown: marked's lexer, and Prism for code. The only importer of these two files of vendor/.
export { Marked } from "../vendor/marked.js";
export { Prism } from "../vendor/prism.js";
