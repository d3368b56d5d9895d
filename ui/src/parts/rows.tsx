// A list that draws only what is seen. Rows have one height; more are asked for near the end. What
// comes above the rows that somebody reads does not move them.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export const ROW = 28;
const EXTRA = 8;

export function Rows({
  count,
  row,
  keyOf,
  label,
  cursor,
  follows,
  onEnd,
  height = ROW,
  head,
  children,
}: {
  count: number;
  row: (index: number) => ComponentChildren;
  /** What stays the same of a row when others come before it. */
  keyOf?: (index: number) => string;
  label: string;
  /** The row that must be seen. */
  cursor?: number;
  /** It is the last row of a list that grows. */
  follows?: boolean;
  onEnd?: () => void;
  height?: number;
  head?: ComponentChildren;
  children?: ComponentChildren;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, size: 800 });
  const measure = () => setView({ top: box.current!.scrollTop, size: box.current!.clientHeight });
  const anchor = useRef({ index: 0, key: "" });
  const seen = useRef<{ mark?: string | number; cursor?: number; follows?: boolean; size: number }>({ size: 0 });
  useLayoutEffect(() => {
    const element = box.current!;
    measure();
    const watch = new ResizeObserver(measure);
    watch.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    return () => {
      watch.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, []);
  const first = Math.max(0, Math.floor(view.top / height) - EXTRA);
  const end = Math.min(count, Math.ceil((view.top + view.size) / height) + EXTRA);
  useEffect(() => {
    if (onEnd && end >= count - EXTRA) onEnd();
  }, [end, count]);
  useLayoutEffect(() => {
    const element = box.current!;
    const { index, key } = anchor.current;
    if (!keyOf || !key || !element.scrollTop || (index < count && keyOf(index) === key)) return;
    for (let now = 0; now < count; now++) {
      if (keyOf(now) !== key) continue;
      element.scrollTop += (now - index) * height;
      return measure();
    }
  });
  useLayoutEffect(() => {
    const index = Math.min(Math.floor(box.current!.scrollTop / height), count - 1);
    anchor.current = { index, key: keyOf && index >= 0 ? keyOf(index) : "" };
  });
  const mark = keyOf && cursor !== undefined && cursor >= 0 ? keyOf(cursor) : cursor;
  useEffect(() => {
    const element = box.current!;
    const old = seen.current;
    seen.current = { mark, cursor, follows, size: element.clientHeight };
    if (cursor === undefined || cursor < 0) return;
    // It is the same row, or still the last one: who has scrolled away from it reads on where they are.
    const last = mark === old.mark ? cursor : follows && old.follows ? old.cursor : undefined;
    if (last !== undefined && (last * height >= element.scrollTop + old.size || (last + 1) * height <= element.scrollTop)) return;
    const top = cursor * height;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + 2 * height > element.scrollTop + element.clientHeight) element.scrollTop = top + 2 * height - element.clientHeight;
  }, [mark, height, view.size]);
  const shown = [];
  for (let index = first; index < end; index++) shown.push(row(index));
  return (
    <div class="rows" ref={box} tabIndex={0} role="table" aria-label={label} aria-rowcount={count}>
      {head && <div role="rowgroup" class="rows-head">{head}</div>}
      <div role="rowgroup" class="rows-space" style={{ height: `${count * height}px` }}>
        <div class="rows-shown" role="presentation" style={{ transform: `translateY(${first * height}px)` }}>
          {shown}
        </div>
      </div>
      {children}
    </div>
  );
}
