// Tabs: left and right walk them, and only the chosen one is in the order of the Tab key.
import { useLayoutEffect, useRef } from "preact/hooks";

export function Tabs<T extends string>({ label, names, chosen, onChoose, titles = {} }: { label: string; names: readonly T[]; chosen: T; onChoose: (name: T) => void; titles?: Partial<Record<T, string>> }) {
  const box = useRef<HTMLDivElement>(null);
  // The chosen one is seen whole, also where not all have room.
  useLayoutEffect(() => {
    const tab = box.current?.querySelector("[aria-selected=true]");
    if (!box.current || !tab) return;
    const [room, own] = [box.current.getBoundingClientRect(), tab.getBoundingClientRect()];
    box.current.scrollLeft += Math.max(0, own.right - room.right) + Math.min(0, own.left - room.left);
  }, [chosen]);
  return (
    <div
      ref={box}
      class="tabs"
      role="tablist"
      aria-label={label}
      onKeyDown={(event) => {
        const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
        if (!by) return;
        event.preventDefault();
        const next = names[(names.indexOf(chosen) + by + names.length) % names.length]!;
        onChoose(next);
        document.getElementById(`tab-${next}`)?.focus();
      }}
    >
      {names.map((one) => (
        <button type="button" role="tab" id={`tab-${one}`} aria-selected={one === chosen} tabIndex={one === chosen ? 0 : -1} onClick={() => onChoose(one)}>
          {titles[one] ?? one}
        </button>
      ))}
    </div>
  );
}
