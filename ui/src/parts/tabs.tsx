// Tabs: left and right walk them, and only the chosen one is in the order of the Tab key.
export function Tabs<T extends string>({ label, names, chosen, onChoose, titles = {} }: { label: string; names: readonly T[]; chosen: T; onChoose: (name: T) => void; titles?: Partial<Record<T, string>> }) {
  return (
    <div
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
