// From numbers to places on the screen: linear scales with round ticks.

/** Return [least, greatest] of lists of numbers, nulls left out; null where there is none. */
export function extent(lists) {
  let least = Infinity;
  let greatest = -Infinity;
  for (const list of lists)
    for (const value of list ?? [])
      if (value !== null && Number.isFinite(value)) {
        if (value < least) least = value;
        if (value > greatest) greatest = value;
      }
  return least <= greatest ? [least, greatest] : null;
}

/** Return about `num` round numbers within [least, greatest]; `whole`: none between two integers. */
export function ticks(least, greatest, num, whole = false) {
  const rough = (greatest - least) / Math.max(1, num);
  if (!(rough > 0)) return [least];
  const power = 10 ** Math.floor(Math.log10(rough));
  const factors = whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
  const step = Math.max(whole ? 1 : 0, power * factors.find((factor) => factor * power >= 0.7 * rough));
  const found = [];
  for (let index = Math.ceil(least / step - 1e-9); index * step <= greatest + 1e-9 * step; index += 1)
    found.push(Number((index * step).toPrecision(12)));
  return found;
}

const CLOCK_STEPS_S = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200];

/** Return about `num` moments within [least, greatest] seconds, round as clocks are. */
export function clockTicks(least, greatest, num) {
  const rough = (greatest - least) / Math.max(1, num);
  if (!(rough > 0)) return [least];
  const step = CLOCK_STEPS_S.find((it) => it >= rough) ?? 86400 * Math.ceil(rough / 86400);
  const first = Math.ceil(least / step - 1e-9);
  return Array.from({ length: Math.max(0, Math.floor(greatest / step + 1e-9) - first + 1) }, (_, index) => (first + index) * step);
}

/** Return the function that takes `least` to `from` and `greatest` to `to`. */
export function linear([least, greatest], [from, to]) {
  const factor = greatest > least ? (to - from) / (greatest - least) : 0;
  return (value) => from + (value - least) * factor;
}

/** Return the limits with some air around, and those of a constant opened up. */
export function roomy([least, greatest], share = 0.06) {
  const air = greatest > least ? (greatest - least) * share : Math.abs(least) * 0.1 || 1;
  // A quantity that is never negative starts at zero, where zero is near.
  return [least >= 0 && least - air < 0.25 * (greatest - least) ? Math.min(0, least) : least - air, greatest + air];
}

/** Return the index of the number nearest to `value` in a sorted list. */
export function nearest(sorted, value) {
  let low = 0;
  let high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle;
    else high = middle;
  }
  return value - sorted[low] <= sorted[high] - value ? low : high;
}
