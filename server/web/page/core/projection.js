// Vectors as directions and as points in a plane.

/** Rows of a row-major [count, width] array scaled to length 1; a zero row stays zero. */
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

/** Dot products of all pairs of rows, [count, count]. */
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

/**
 * Principal components from the rows' dot products: the centred Gram matrix has the same eigenvalues as the covariance
 * (times count), and its eigenvectors times their roots are the coordinates.
 * Returns {points: [[x, y]], explained: [share of the variance of x, of y]}.
 */
export function principalPlane(products, count) {
  const centred = centredGram(products, count);
  const { values, vectors } = jacobi(centred, count);
  const order = [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, 2);
  const total = values.reduce((sum, value) => sum + Math.max(value, 0), 0) || 1;
  const axis = (place, row) => {
    const k = order[place];
    return k === undefined ? 0 : vectors[row * count + k] * Math.sqrt(Math.max(values[k], 0));
  };
  return {
    points: Array.from({ length: count }, (_, row) => [axis(0, row), axis(1, row)]),
    explained: [0, 1].map((place) => (order[place] === undefined ? 0 : Math.max(values[order[place]], 0) / total)),
  };
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

/** Eigenvalues and eigenvectors (in columns) of a symmetric matrix, by cyclic Jacobi rotations (Golub, Van Loan 8.5). */
function jacobi(matrix, count) {
  const a = Float64Array.from(matrix);
  const vectors = new Float64Array(count * count);
  for (let i = 0; i < count; i += 1) vectors[i * count + i] = 1;
  for (let sweep = 0; sweep < 30; sweep += 1) {
    let off = 0;
    let size = 0;
    for (let i = 0; i < count * count; i += 1) {
      size += a[i] ** 2;
      if (Math.floor(i / count) !== i % count) off += a[i] ** 2;
    }
    if (off <= 1e-20 * size) break;
    for (let p = 0; p < count; p += 1) for (let q = p + 1; q < count; q += 1) rotate(a, vectors, count, p, q);
  }
  return { values: Array.from({ length: count }, (_, i) => a[i * count + i]), vectors };
}

function rotate(a, vectors, count, p, q) {
  const apq = a[p * count + q];
  if (Math.abs(apq) < 1e-300) return;
  const theta = (a[q * count + q] - a[p * count + p]) / (2 * apq);
  const t = Math.sign(theta || 1) / (Math.abs(theta) + Math.hypot(theta, 1));
  const c = 1 / Math.hypot(t, 1);
  const s = t * c;
  for (let k = 0; k < count; k += 1) {
    const [kp, kq] = [a[k * count + p], a[k * count + q]];
    a[k * count + p] = c * kp - s * kq;
    a[k * count + q] = s * kp + c * kq;
  }
  for (let k = 0; k < count; k += 1) {
    const [pk, qk] = [a[p * count + k], a[q * count + k]];
    a[p * count + k] = c * pk - s * qk;
    a[q * count + k] = s * pk + c * qk;
  }
  for (let k = 0; k < count; k += 1) {
    const [kp, kq] = [vectors[k * count + p], vectors[k * count + q]];
    vectors[k * count + p] = c * kp - s * kq;
    vectors[k * count + q] = s * kp + c * kq;
  }
}
