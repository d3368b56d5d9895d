// A table. Where it has no room each row is a card: what does not speak for itself has the title of its
// column before it.
import type { ComponentChildren } from "preact";
import type { Problem } from "../api/client";
import { Trouble } from "./notes";

export interface Column<T> {
  title: string;
  cell: (one: T) => ComponentChildren;
  class?: string;
  /** Without its title nobody would know what the value means. */
  named?: boolean;
  /** The title is only heard: the cells say what they do. */
  silent?: boolean;
}

interface Shape<T> {
  label: string;
  columns: (Column<T> | false)[];
  keyOf?: (one: T) => string;
}

/** A table of what was asked for; where there is nothing yet, what to do. */
export function Listing<T>({ error, rows, none, ...shape }: Shape<T> & { error?: Problem | undefined; rows: readonly T[] | undefined; none: ComponentChildren }) {
  return (
    <>
      {error && <Trouble problem={error} />}
      {rows && (rows.length ? <Table rows={rows} {...shape} /> : none)}
    </>
  );
}

export function Table<T>({ label, columns, rows, keyOf }: Shape<T> & { rows: readonly T[] }) {
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
