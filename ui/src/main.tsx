// The web UI of NoETL.
import "./style.css";
import { render } from "preact";
import { App } from "./app";
import { hearKeys } from "./keys";
import { watchUpdates } from "./update";
import { followLinks } from "./url";

// The icon's address is relative to where the page began; browsers ask for it again elsewhere.
const icon = document.querySelector<HTMLLinkElement>("link[rel=icon]");
if (icon) icon.href = icon.href;
followLinks();
hearKeys();
watchUpdates();
const root = document.getElementById("app")!;
root.replaceChildren();
render(<App />, root);
