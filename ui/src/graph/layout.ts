// Layers and rows, as the server says them, on a plane of pixels.
import type { Layout } from "../api/types";
import type { Drawing } from "./canvas";

const WIDTH = 160;
const HEIGHT = 44;
const ACROSS = WIDTH + 44;
const DOWN = HEIGHT + 20;

export function drawn(layout: Layout): Drawing {
  const boxes = layout.nodes.map((node) => ({
    id: node.id,
    x: node.x * ACROSS,
    y: node.y * DOWN,
    width: WIDTH,
    height: HEIGHT,
    kinds: node.waits ? ["waits", ...node.kinds] : node.kinds,
    loop: node.loop,
  }));
  return {
    entry: layout.entry,
    boxes,
    wires: layout.edges.map((edge) => ({
      from: edge.from,
      to: edge.to,
      onFailure: edge.on_failure || edge.kind === "compensate",
      points: (edge.points as [number, number][]).map(([x, y]) => [x * ACROSS + WIDTH / 2, y * DOWN + HEIGHT / 2]),
    })),
    width: Math.max(WIDTH, ...boxes.map((one) => one.x + one.width)),
    height: Math.max(HEIGHT, ...boxes.map((one) => one.y + one.height)),
  };
}
