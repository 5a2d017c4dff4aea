// Reads application/vnd.safetensors: 8 bytes of header length, a JSON header, raw little-endian arrays.

const TYPES = {
  F64: (buffer) => Float32Array.from(new Float64Array(buffer)),
  F32: (buffer) => new Float32Array(buffer),
  F16: (buffer) => halfToSingle(new Uint16Array(buffer)),
  I64: (buffer) => Float64Array.from(new BigInt64Array(buffer), Number),
  I32: (buffer) => new Int32Array(buffer),
  U8: (buffer) => new Uint8Array(buffer),
  BOOL: (buffer) => new Uint8Array(buffer),
};

export function parseSafetensors(buffer) {
  const headerLength = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, headerLength)));
  const { __metadata__: metadata = {}, ...entries } = header;
  const tensors = {};
  for (const [name, { dtype, shape, data_offsets: offsets }] of Object.entries(entries)) {
    const read = TYPES[dtype];
    if (!read) throw new Error(`safetensors: no reader for ${dtype} of ${name}`);
    const start = 8 + headerLength;
    tensors[name] = { data: read(buffer.slice(start + offsets[0], start + offsets[1])), shape, dtype };
  }
  return { metadata, tensors };
}

function halfToSingle(halves) {
  const singles = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i += 1) {
    const half = halves[i];
    const exponent = (half >> 10) & 31;
    const fraction = half & 1023;
    let magnitude;
    if (exponent === 31) magnitude = fraction ? NaN : Infinity;
    else if (exponent === 0) magnitude = fraction * 2 ** -24;
    else magnitude = (1 + fraction / 1024) * 2 ** (exponent - 15);
    singles[i] = half & 0x8000 ? -magnitude : magnitude;
  }
  return singles;
}
