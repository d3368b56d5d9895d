// A table. Where it has no room each row is a card: what does not speak for itself has the title of its
// column before it.
import type { ComponentChildren } from "preact";

export interface Column<T> {
  title: string;
  cell: (one: T) => ComponentChildren;
  class?: string;
  /** Without its title nobody would know what the value means. */
  named?: boolean;
  /** The title is only heard: the cells say what they do. */
  silent?: boolean;
}

export function Table<T>({ label, columns, rows, keyOf }: { label: string; columns: (Column<T> | false)[]; rows: readonly T[]; keyOf?: (one: T) => string }) {
  const shown = columns.filter((one) => one !== false);
  return (
    <div class="tablebox" tabIndex={0} role="group" aria-label={label}>
      <table>
        <thead>
          <tr>
            {shown.map((column) => (
              <th scope="col" class={column.class}>{column.silent ? <span class="hidden">{column.title}</span> : column.title}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((one) => (
            <tr key={keyOf?.(one)}>
              {shown.map((column) => (
                <td class={column.class} data-title={column.named ? column.title : undefined}>{column.cell(one)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
