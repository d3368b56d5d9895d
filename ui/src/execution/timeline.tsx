// One line for each run of a step: queue, run, backing off, waiting, child.
import { useMemo } from "preact/hooks";
import { Mark } from "../parts/status";
import { now, took } from "../time";
import { scale, type Line } from "./fold";

const LINES_MAX = 400;

export function Timeline({ lines, begin, end, cursor, selected, onSelect }: { lines: Line[]; begin: number; end: number | null; cursor: number | null; selected: string; onSelect: (step: string, runId: string) => void }) {
  const finish = end ?? now.value;
  const { place, squeezed } = useMemo(() => scale(lines, begin, Math.max(finish, begin + 1)), [lines, begin, finish]);
  const percent = (moment: number) => `${(place(moment) * 100).toFixed(2)}%`;
  const shown = lines.slice(-LINES_MAX);
  return (
    <section class="timeline" aria-label="Timeline" tabIndex={0}>
      {lines.length > LINES_MAX && <p class="quiet note">the last {LINES_MAX} of {lines.length} runs</p>}
      {shown.map((line) => {
        const last = Number.isNaN(line.to) ? finish : line.to;
        return (
          <button type="button" key={line.runId} class={`line ${line.step === selected ? "at" : ""}`} onClick={() => onSelect(line.step, line.runId)}>
            <span class="cut">
              <Mark status={line.status} /> {line.step}
              {line.number > 1 && <span class="quiet"> run {line.number}</span>}
            </span>
            <span class="bars">
              {line.bars.map((bar) => {
                const to = Number.isNaN(bar.to) ? finish : bar.to;
                const left = place(bar.from);
                return (
                  <i
                    class={`bar ${bar.kind}`}
                    title={`${bar.says}: ${took((to - bar.from) / 1000)}`}
                    style={{ left: percent(bar.from), width: `${Math.max(0, place(to) - left) * 100}%` }}
                  />
                );
              })}
              {cursor !== null && <i class="cursor" style={{ left: percent(cursor) }} />}
            </span>
            <span class="num">{took((last - line.from) / 1000)}</span>
          </button>
        );
      })}
      {squeezed && <p class="quiet note">long waits are squeezed</p>}
    </section>
  );
}
