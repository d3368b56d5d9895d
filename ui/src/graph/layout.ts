// From the graph of the catalog to boxes on a plane.
import type { Layout } from "../api/types";
import type { Drawing } from "./canvas";

const WIDTH = 160;
const HEIGHT = 44;
const ACROSS = 40;
const DOWN = 20;

/** Layers by longest path from the entry; arcs back do not count. Rows by the middle of those before. */
export function drawn(layout: Layout): Drawing {
  const next = new Map<string, string[]>();
  for (const edge of layout.edges) next.set(edge.from, [...(next.get(edge.from) ?? []), edge.to]);
  const layer = layers(layout, next);
  const columns: string[][] = [];
  for (const node of layout.nodes) (columns[layer.get(node.id)!] ??= []).push(node.id);
  const row = new Map<string, number>();
  const before = new Map<string, string[]>();
  for (const edge of layout.edges) before.set(edge.to, [...(before.get(edge.to) ?? []), edge.from]);
  columns.forEach((column, number) => {
    const middle = (id: string) => {
      const known = (before.get(id) ?? []).filter((one) => (layer.get(one) ?? 0) < number).map((one) => row.get(one)!);
      return known.length ? known.reduce((sum, one) => sum + one, 0) / known.length : 0;
    };
    const wanted = new Map(column.map((id) => [id, middle(id)]));
    column.sort((a, b) => wanted.get(a)! - wanted.get(b)!);
    let last = -Infinity;
    for (const id of column) {
      const place = Math.max(wanted.get(id)! - (column.length - 1) / 2, last + 1);
      row.set(id, place);
      last = place;
    }
  });
  const top = Math.min(0, ...row.values());
  const boxes = layout.nodes.map((node) => ({
    id: node.id,
    x: layer.get(node.id)! * (WIDTH + ACROSS),
    y: (row.get(node.id)! - top) * (HEIGHT + DOWN),
    width: WIDTH,
    height: HEIGHT,
    kinds: node.kinds,
    loop: node.loop,
  }));
  return {
    entry: layout.entry,
    boxes,
    wires: layout.edges.map((edge) => ({ from: edge.from, to: edge.to, onFailure: edge.on_failure, points: [] })),
    width: Math.max(...boxes.map((one) => one.x + one.width)),
    height: Math.max(...boxes.map((one) => one.y + one.height)),
  };
}

function layers(layout: Layout, next: Map<string, string[]>): Map<string, number> {
  // Depth first finds the arcs that lead back; the rest has no cycle.
  const state = new Map<string, "open" | "closed">();
  const order: string[] = [];
  const back = new Set<string>();
  const visit = (start: string) => {
    const stack: [string, number][] = [[start, 0]];
    state.set(start, "open");
    while (stack.length) {
      const top = stack[stack.length - 1]!;
      const targets = next.get(top[0]) ?? [];
      const target = targets[top[1]++];
      if (target === undefined) {
        state.set(top[0], "closed");
        order.push(top[0]);
        stack.pop();
      } else if (state.get(target) === "open") back.add(`${top[0]}>${target}`);
      else if (!state.has(target)) {
        state.set(target, "open");
        stack.push([target, 0]);
      }
    }
  };
  for (const start of [layout.entry, ...layout.nodes.map((one) => one.id)]) if (!state.has(start)) visit(start);
  const depth = new Map(layout.nodes.map((one) => [one.id, 0]));
  for (const id of order.reverse())
    for (const target of next.get(id) ?? [])
      if (!back.has(`${id}>${target}`) && depth.has(target)) depth.set(target, Math.max(depth.get(target)!, depth.get(id)! + 1));
  return depth;
}
