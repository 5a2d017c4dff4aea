// Saves data of a view: arrays as npy or CSV, text, and any blob.

export function saveBlob(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export const sizeOf = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** NumPy's format 1.0 of a row-major array: magic, header padded to 64 bytes, raw little-endian values. */
export function npyBytes({ data, shape }) {
  const types = { Float32Array: "<f4", Float64Array: "<f8", Int32Array: "<i4", Uint8Array: "|u1", Uint32Array: "<u4" };
  const descr = types[data.constructor.name];
  const tuple = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
  const header = `{'descr': '${descr}', 'fortran_order': False, 'shape': ${tuple}, }`;
  const padded = header.padEnd(Math.ceil((10 + header.length + 1) / 64) * 64 - 11) + "\n";
  const start = new Uint8Array(10);
  start.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, padded.length & 255, padded.length >> 8]);
  return new Blob([start, padded, data], { type: "application/octet-stream" });
}

const quoted = (cell) => (/[",\n\r]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell));

const csvText = (lines) => lines.map((line) => line.map(quoted).join(",")).join("\r\n") + "\r\n";

/** Further axes become rows. */
export function csvOfArray({ data, shape }, rowNames, columnNames) {
  const columns = shape.at(-1);
  const lines = [];
  if (columnNames) lines.push(["", ...columnNames]);
  for (let row = 0; row * columns < data.length; row += 1) {
    const values = Array.from(data.subarray(row * columns, (row + 1) * columns));
    lines.push([rowNames?.[row] ?? row, ...values]);
  }
  return csvText(lines);
}
