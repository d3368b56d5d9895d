// The graph for the keyboard and for screen readers: steps in flow order; left and right walk arcs.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { wordOf } from "../parts/status";
import type { Drawing, Mood } from "./canvas";

const WINDOW = 60;

export function flowOrder(drawing: Drawing): string[] {
  const next = new Map<string, string[]>();
  for (const wire of drawing.wires) next.set(wire.from, [...(next.get(wire.from) ?? []), wire.to]);
  const seen = new Set<string>();
  const order: string[] = [];
  const waiting = [drawing.entry];
  while (waiting.length) {
    const step = waiting.shift()!;
    if (seen.has(step)) continue;
    seen.add(step);
    order.push(step);
    waiting.push(...(next.get(step) ?? []));
  }
  return [...order, ...drawing.boxes.map((one) => one.id).filter((id) => !seen.has(id))];
}

export function GraphTree({ drawing, moods, selected, onSelect }: { drawing: Drawing; moods: Map<string, Mood>; selected: string; onSelect: (step: string) => void }) {
  const order = useMemo(() => flowOrder(drawing), [drawing]);
  const [at, setAt] = useState(() => Math.max(0, order.indexOf(selected)));
  // Who goes to it by Tab begins at the step that was chosen, also in another place.
  useEffect(() => {
    if (order.includes(selected)) setAt(order.indexOf(selected));
  }, [order, selected]);
  const list = useRef<HTMLUListElement>(null);
  const move = (index: number) => {
    if (index < 0 || index >= order.length) return;
    setAt(index);
    onSelect(order[index]!);
    requestAnimationFrame(() => list.current?.querySelector<HTMLElement>("[tabindex='0']")?.focus());
  };
  const along = (forwards: boolean) => {
    const here = order[at];
    const wire = drawing.wires.find((one) => (forwards ? one.from : one.to) === here);
    if (wire) move(order.indexOf(forwards ? wire.to : wire.from));
  };
  const first = Math.max(0, at - WINDOW);
  return (
    <ul
      class="tree"
      role="tree"
      aria-label="Steps in flow order; left and right walk arcs"
      ref={list}
      onKeyDown={(event) => {
        if (event.key === "ArrowDown") move(at + 1);
        else if (event.key === "ArrowUp") move(at - 1);
        else if (event.key === "ArrowRight") along(true);
        else if (event.key === "ArrowLeft") along(false);
        else if (event.key === "Home") move(0);
        else if (event.key === "End") move(order.length - 1);
        else if (event.key === "Enter" || event.key === " ") onSelect(order[at]!);
        else return;
        event.preventDefault();
        event.stopPropagation();
      }}
    >
      {order.slice(first, at + WINDOW).map((step, number) => {
        const mood = moods.get(step);
        const index = first + number;
        return (
          <li
            role="treeitem"
            key={step}
            tabIndex={index === at ? 0 : -1}
            aria-posinset={index + 1}
            aria-setsize={order.length}
            aria-level={1}
            aria-selected={step === selected}
            onClick={() => move(index)}
            onFocus={() => setAt(index)}
          >
            {step} {(mood || moods.size > 0) && <span class="quiet">{mood ? wordOf(mood.status) : "not reached"}</span>}
          </li>
        );
      })}
    </ul>
  );
}
