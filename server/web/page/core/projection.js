// Vectors as directions and as points in a plane.

export function dot(a, b) {
  let all = 0;
  for (let i = 0; i < a.length; i += 1) all += a[i] * b[i];
  return all;
}

export const lengthOf = (vector) => Math.sqrt(dot(vector, vector));

/** Row i of an array {data, shape}. */
export const rowOf = ({ data, shape }, i) => data.subarray(i * shape.at(-1), (i + 1) * shape.at(-1));

/** The product of each row of an array with each row of another. */
export function productsOf(a, b) {
  const [rows, columns] = [a, b].map((array) => Array.from({ length: array.shape[0] }, (_, i) => rowOf(array, i)));
  const { length } = columns;
  return Float32Array.from({ length: rows.length * length }, (_, i) => dot(rows[Math.floor(i / length)], columns[i % length]));
}

/** Rows scaled to length 1; a zero row stays zero. */
export function unitRows(data, count, width) {
  const units = new Float64Array(count * width);
  for (let row = 0; row < count; row += 1) {
    let square = 0;
    for (let i = 0; i < width; i += 1) square += data[row * width + i] ** 2;
    const scale = square > 0 ? 1 / Math.sqrt(square) : 0;
    for (let i = 0; i < width; i += 1) units[row * width + i] = data[row * width + i] * scale;
  }
  return units;
}

export function transposed(values, rows, columns) {
  return new Float32Array(values.length).map((_, i) => values[(i % rows) * columns + Math.floor(i / rows)]);
}

/** Dot products of all pairs of rows. */
export function gram(rows, count, width) {
  const products = new Float64Array(count * count);
  for (let a = 0; a < count; a += 1) {
    for (let b = a; b < count; b += 1) {
      let sum = 0;
      for (let i = 0; i < width; i += 1) sum += rows[a * width + i] * rows[b * width + i];
      products[a * count + b] = sum;
      products[b * count + a] = sum;
    }
  }
  return products;
}

const MOST_STEPS = 1000;

/**
 * {points: [[x, y]], explained}: principal components from the rows' dot products. The centred Gram matrix has the same
 * eigenvalues as the covariance (times count), and its eigenvectors times their roots are the coordinates.
 */
export function principalPlane(products, count) {
  const centred = centredGram(products, count);
  const total = centred.reduce((sum, value, i) => sum + (i % (count + 1) ? 0 : value), 0); // the trace
  const first = dominant(centred, count, total, []);
  const axes = [first, dominant(centred, count, total, [first.vector])];
  return {
    points: Array.from({ length: count }, (_, row) => axes.map(({ value, vector }) => vector[row] * Math.sqrt(value))),
    explained: axes.map(({ value }) => value / (total || 1)),
  };
}

/** The largest eigenvalue with its unit vector, orthogonal to `others`; 0 if there is none. */
function dominant(matrix, count, total, others) {
  let vector = Float64Array.from({ length: count }, (_, i) => Math.sin(i + 1));
  let value = 0;
  for (let step = 0; step < MOST_STEPS; step += 1) {
    let next = vector.map((_, row) => dot(vector, matrix.subarray(row * count, (row + 1) * count)));
    for (const other of others) {
      const along = dot(next, other);
      next = next.map((entry, i) => entry - along * other[i]);
    }
    value = Math.sqrt(dot(next, next));
    if (value <= 1e-12 * total) return { value: 0, vector: new Float64Array(count) };
    next = next.map((entry) => entry / value);
    const isDone = step > 0 && dot(next, vector) > 1 - 1e-15; // the first vector is no unit vector
    vector = next;
    if (isDone) break;
  }
  return { value, vector };
}

function centredGram(products, count) {
  const means = new Float64Array(count);
  let all = 0;
  for (let a = 0; a < count; a += 1) {
    for (let b = 0; b < count; b += 1) means[a] += products[a * count + b] / count;
    all += means[a] / count;
  }
  return products.map((value, i) => value - means[Math.floor(i / count)] - means[i % count] + all);
}
