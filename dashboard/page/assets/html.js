// html makes elements of text, state and effects come from preact.
import { Component, h } from "preact";
import htm from "htm";

export { Component, render } from "preact";
export { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
export const html = htm.bind(h);

// Steady is drawn again only if one of its properties is another one.
export class Steady extends Component {
  shouldComponentUpdate(next) {
    for (const name in next) if (next[name] !== this.props[name]) return true;
    return false;
  }
}
