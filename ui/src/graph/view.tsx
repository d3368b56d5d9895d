// A graph with its twin for the keyboard and screen readers.
import { Graph, type Drawing, type Mood } from "./canvas";
import { GraphTree } from "./tree";

export function GraphView({ drawing, moods, taken, selected, onSelect, view = "", onView = () => undefined }: { drawing: Drawing; moods: Map<string, Mood>; taken: ReadonlySet<string>; selected: string; onSelect: (step: string) => void; view?: string; onView?: (text: string) => void }) {
  return (
    <>
      <Graph drawing={drawing} moods={moods} taken={taken} selected={selected} onSelect={onSelect} view={view} onView={onView} />
      <GraphTree drawing={drawing} moods={moods} selected={selected} onSelect={onSelect} />
    </>
  );
}
