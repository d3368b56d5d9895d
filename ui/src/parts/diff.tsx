// Two texts line by line: the shortest way from one to the other, with what is the same left out.

type Change = [kind: "same" | "add" | "del", line: string];
const KEPT = 3;

/** Myers' greedy algorithm; far-apart texts are shown whole, one after the other. */
export function lineDiff(a: string[], b: string[]): Change[] {
  const [n, m] = [a.length, b.length];
  const most = Math.min(n + m, 2000);
  const trace: Map<number, number>[] = [];
  let reach = new Map([[1, 0]]);
  for (let d = 0; d <= most; d++) {
    const next = new Map(reach);
    for (let k = -d; k <= d; k += 2) {
      let x = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1)) ? (reach.get(k + 1) ?? 0) : (reach.get(k - 1) ?? 0) + 1;
      let y = x - k;
      while (x < n && y < m && a[x] === b[y]) [x, y] = [x + 1, y + 1];
      next.set(k, x);
      if (x >= n && y >= m) {
        trace.push(reach);
        return walk(trace, a, b, d);
      }
    }
    trace.push(reach);
    reach = next;
  }
  return [...a.map((line): Change => ["del", line]), ...b.map((line): Change => ["add", line])];
}

function walk(trace: Map<number, number>[], a: string[], b: string[], depth: number): Change[] {
  const found: Change[] = [];
  let [x, y] = [a.length, b.length];
  for (let d = depth; d >= 0; d--) {
    const reach = trace[d]!;
    const k = x - y;
    const before = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1)) ? k + 1 : k - 1;
    const fromX = d === 0 ? 0 : (reach.get(before) ?? 0);
    const fromY = d === 0 ? 0 : fromX - before;
    while (x > fromX && y > fromY) {
      found.push(["same", a[x - 1]!]);
      [x, y] = [x - 1, y - 1];
    }
    if (d > 0) {
      if (x === fromX) found.push(["add", b[y - 1]!]);
      else found.push(["del", a[x - 1]!]);
      [x, y] = [fromX, fromY];
    }
  }
  return found.reverse();
}

export function Diff({ before, after }: { before: string; after: string }) {
  const changes = lineDiff(before.split("\n"), after.split("\n"));
  const near = changes.map((_, index) => changes.slice(Math.max(0, index - KEPT), index + KEPT + 1).some(([kind]) => kind !== "same"));
  if (!changes.some(([kind]) => kind !== "same")) return <p class="quiet">The texts are the same.</p>;
  let skipped = 0;
  return (
    <pre class="diff">
      {changes.map(([kind, line], index) => {
        if (!near[index]) {
          skipped++;
          return near[index + 1] || index === changes.length - 1 ? <span class="gap">… {(() => { const told = skipped === 1 ? "1 line" : `${skipped} lines`; skipped = 0; return told; })()} the same</span> : null;
        }
        return (
          <span class={kind}>
            {kind === "add" ? "+ " : kind === "del" ? "- " : "  "}
            {line}
          </span>
        );
      })}
    </pre>
  );
}
