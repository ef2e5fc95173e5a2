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

/** Return about `num` round numbers within [least, greatest]. */
export function ticks(least, greatest, num) {
  const rough = (greatest - least) / Math.max(1, num);
  if (!(rough > 0)) return [least];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const found = [];
  for (let index = Math.ceil(least / step - 1e-9); index * step <= greatest + 1e-9 * step; index += 1)
    found.push(Number((index * step).toPrecision(12)));
  return found;
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
