// The last runs of a playbook as a row of small bars.
import type { RunMark } from "../api/types";
import { took } from "../time";
import { go, href, path } from "../url";
import { standing, toneOf, wordOf } from "./status";

/** The last runs, oldest first: height is duration, colour is status. */
export function Strip({ name, runs }: { name: string; runs: RunMark[] }) {
  if (!runs.length) return null;
  const longest = Math.max(0.001, ...runs.map((one) => one.duration_seconds ?? 0));
  const last = wordOf(standing(runs[0]!));
  return (
    <a
      class="strip"
      href={href(`/executions?q=${encodeURIComponent(`path:${name}`)}`)}
      aria-label={runs.length === 1 ? `The last run of ${name}: ${last}` : `The last ${runs.length} runs of ${name}, the newest ${last}`}
      onClick={(event) => {
        const id = (event.target as HTMLElement).dataset.id;
        if (!id) return;
        event.preventDefault();
        go(path("executions", id));
      }}
    >
      {[...runs].reverse().map((one) => {
        const told = `${wordOf(standing(one))}, ${took(one.duration_seconds)}`;
        return <i key={one.execution_id} data-id={one.execution_id} class={`tone-${toneOf(standing(one))}`} title={told} style={{ height: `${30 + (70 * (one.duration_seconds ?? longest)) / longest}%` }} />;
      })}
    </a>
  );
}
