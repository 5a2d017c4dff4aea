// Alignment of two texts by their difference: the common beginning, the differing middle, the common end.

/**
 * {columns, first}: columns [[position in a, position in b, whether the tokens are equal]], null without a counterpart;
 * first: index of the first column that differs. The ends of both middles are paired: their last tokens have read most.
 */
export function aligned(a, b) {
  const shorter = Math.min(a.length, b.length);
  const width = Math.max(a.length, b.length);
  let first = 0;
  while (first < shorter && a[first] === b[first]) first += 1;
  const place = (tokens, i) => {
    const fromEnd = i - width + tokens.length;
    return i < first ? i : fromEnd < first ? null : fromEnd;
  };
  const columns = Array.from({ length: width }, (_, i) => {
    const [own, other] = [place(a, i), place(b, i)];
    return [own, other, own !== null && other !== null && a[own] === b[other]];
  });
  return { columns, first };
}
