// CodeMirror in a shadow root: its styles are constructed sheets there, which the policy of the page allows.
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { bracketMatching, foldGutter, HighlightStyle, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { EditorState } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import type { Problem } from "../api/types";

export interface Handle {
  text: () => string;
  replace: (text: string) => void;
  show: (problems: readonly Problem[]) => void;
  goTo: (line: number, column: number) => void;
  close: () => void;
}

const colours = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--running)" },
  { tag: tags.definition(tags.propertyName), color: "var(--running)" },
  { tag: [tags.string, tags.content], color: "var(--ink)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--waiting)" },
  { tag: tags.comment, color: "var(--quiet)" },
  { tag: [tags.punctuation, tags.separator], color: "var(--quiet)" },
]);

const look = EditorView.theme({
  "&": { height: "100%", fontSize: "12px", color: "var(--ink)", backgroundColor: "var(--page)" },
  ".cm-scroller": { fontFamily: "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace", lineHeight: "18px" },
  ".cm-gutters": { backgroundColor: "var(--page)", color: "var(--quiet)", borderRight: "1px solid var(--line)" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--select) 50%, transparent)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-2px" },
  ".cm-tooltip, .cm-panels": { backgroundColor: "var(--raised)", color: "var(--ink)", border: "1px solid var(--line)" },
  ".cm-selectionBackground, &.cm-focused .cm-selectionBackground": { backgroundColor: "var(--select) !important" },
});

export function edit(host: HTMLElement, text: string, onChange: (text: string) => void): Handle {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  root.replaceChildren();
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(),
        foldGutter(),
        history(),
        drawSelection(),
        indentOnInput(),
        bracketMatching(),
        highlightActiveLine(),
        highlightSelectionMatches(),
        lintGutter(),
        yaml(),
        syntaxHighlighting(colours),
        look,
        EditorState.tabSize.of(2),
        EditorView.contentAttributes.of({ "aria-label": "Playbook", spellcheck: "false" }),
        keymap.of([...defaultKeymap, ...historyKeymap, ...searchKeymap, indentWithTab]),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) onChange(update.state.doc.toString());
        }),
      ],
    }),
  });
  const placeOf = (line: number, column: number) => {
    const found = view.state.doc.line(Math.min(Math.max(1, line), view.state.doc.lines));
    return Math.min(found.to, found.from + Math.max(0, column - 1));
  };
  return {
    text: () => view.state.doc.toString(),
    replace: (next) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next } }),
    show: (problems) =>
      view.dispatch(
        setDiagnostics(
          view.state,
          problems.map((one) => {
            const from = placeOf(one.line ?? 1, one.column ?? 1);
            const word = view.state.wordAt(from);
            return { from, to: word?.to ?? Math.min(from + 1, view.state.doc.length), severity: one.severity === "error" ? "error" : "warning", message: `${one.message} [${one.code}]` };
          }),
        ),
      ),
    goTo: (line, column) => {
      const at = placeOf(line, column);
      view.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: "center" }) });
      view.focus();
    },
    close: () => view.destroy(),
  };
}
