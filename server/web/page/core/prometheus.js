// Parser of the Prometheus text format; rates and quantiles of counters and histograms over a time window.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

function parseMetrics(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : LINE.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(LABEL)].map(([, name, value]) => [name, value]));
    samples.push({ name: match[1], labels, value: Number(match[3].replace("Inf", "Infinity")) });
  }
  return samples;
}

export class Reading {
  #byName = new Map();

  constructor(text, time) {
    this.time = time;
    for (const sample of parseMetrics(text)) {
      const same = this.#byName.get(sample.name) ?? [];
      same.push(sample);
      this.#byName.set(sample.name, same);
    }
  }

  samples(name) {
    return this.#byName.get(name) ?? [];
  }

  sum(name, matches = () => true) {
    const found = this.samples(name).filter(({ labels }) => matches(labels));
    return found.length ? found.reduce((total, { value }) => total + value, 0) : null;
  }

  most(name) {
    const found = this.samples(name);
    return found.length ? Math.max(...found.map(({ value }) => value)) : null;
  }
}

/** After a restart a counter counts from 0. */
export function growth(before, after, name, matches) {
  const [first, last] = [before.sum(name, matches) ?? 0, after.sum(name, matches) ?? 0];
  return last >= first ? last - first : last;
}

export function rate(before, after, name, matches) {
  const seconds = after.time - before.time;
  return seconds > 0 ? growth(before, after, name, matches) / seconds : 0;
}

/** Linear within its bucket, as Prometheus's histogram_quantile; null without observations. */
export function quantile(before, after, name, share) {
  const counts = (reading) => reading.samples(`${name}_bucket`).reduce(
    (sums, { labels, value }) => sums.set(labels.le, (sums.get(labels.le) ?? 0) + value), new Map());
  const earlier = counts(before);
  const restarted = (after.sum(`${name}_count`) ?? 0) < (before.sum(`${name}_count`) ?? 0);
  const buckets = [...counts(after)].map(([le, value]) => ({
    most: Number(le.replace("+Inf", "Infinity")),
    count: value - (restarted ? 0 : (earlier.get(le) ?? 0)),
  }));
  buckets.sort((a, b) => a.most - b.most);
  const total = buckets.at(-1)?.count ?? 0;
  if (total <= 0) return null;
  const rank = share * total;
  const place = buckets.findIndex(({ count }) => count >= rank);
  const least = place > 0 ? buckets[place - 1].most : 0;
  const below = place > 0 ? buckets[place - 1].count : 0;
  const { most, count } = buckets[place];
  if (most === Infinity) return least;
  return count === below ? most : least + ((most - least) * (rank - below)) / (count - below);
}
