// One chart of a timeline, by uPlot. The cursor is shared: it belongs to the timeline.
import { Component, html } from "./html.js";
import { clock } from "./format.js";

const gutter = 46; // left of the plot, as the style sheet knows, too
const right = 10;

let loading = null;
const library = () =>
  (loading ||= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = "vendor/uPlot.iife.min.js";
    script.onload = () => done(window.uPlot);
    script.onerror = () => failed(new Error("uPlot could not be loaded"));
    document.head.append(script);
  }));

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// ticksOf labels times, without a label that the right edge would cut.
function ticksOf(plot, times) {
  const length = times.some((t) => t % 60) ? 8 : 5;
  const { min, max } = plot.scales.x;
  const fits = (t) => ((max - t) / (max - min)) * (plot.width - gutter - right) + right > length * 3.2;
  return times.map((t) => (fits(t) ? clock(t * 1000).slice(0, length) : ""));
}

export class Chart extends Component {
  // Only data goes to uPlot; its element is left alone.
  shouldComponentUpdate() {
    return false;
  }

  componentDidMount() {
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.rebuild = () => this.build();
    this.dark.addEventListener("change", this.rebuild);
    this.watcher = new ResizeObserver(() => this.plot?.setSize({ width: this.element.clientWidth, height: this.props.height + (this.props.axis ? 26 : 0) }));
    this.watcher.observe(this.element);
    library().then((made) => {
      this.library = made;
      this.build();
    });
  }

  componentWillUnmount() {
    this.gone = true;
    this.dark.removeEventListener("change", this.rebuild);
    this.watcher.disconnect();
    this.plot?.destroy();
  }

  componentWillReceiveProps(next) {
    const before = this.props;
    this.props = next;
    if (!this.plot) return;
    if (next.kind !== before.kind) return this.build();
    if (next.times !== before.times) this.plot.setData(this.data());
    this.place();
  }

  data() {
    return [this.props.times, ...this.props.data.map((d) => d.values)];
  }

  // place puts the cursor where the timeline has it.
  place() {
    const { index } = this.props.cursor;
    this.placing = true;
    const left = index === null ? -10 : this.plot.valToPos(this.props.times[index], "x");
    this.plot.setCursor({ left, top: index === null ? -10 : 5 }, false);
    this.placing = false;
  }

  build() {
    if (this.gone || !this.library) return;
    this.plot?.destroy();
    const { data, format, height, axis } = this.props;
    const uPlot = this.library;
    const grid = { stroke: colour("line"), width: 1 };
    const font = "11px " + getComputedStyle(document.body).fontFamily;
    const axes = { stroke: colour("soft"), font, grid, ticks: { show: false }, gap: 6 };
    this.plot = new uPlot({
      width: this.element.clientWidth,
      height: height + (axis ? 26 : 0),
      padding: [8, right, axis ? 0 : 4, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 }, bind: { dblclick: () => null } },
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high || 0) * 1.12] } },
      axes: [
        { ...axes, show: Boolean(axis), size: 26, space: 70, grid: { show: false }, values: ticksOf },
        { ...axes, size: gutter, space: 34, incrs: this.props.kind === "pods" ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] : undefined, values: (_, ticks) => ticks.map(format) },
      ],
      series: [{}, ...data.map((d) => ({
        stroke: colour(d.tone), width: d.tone === "wanted" ? 1.5 : 1.75, dash: d.tone === "wanted" ? [5, 3] : undefined,
        fill: d.fill ? colour(d.tone + "-fill") : d.tone === "load" ? colour("load-fill") : undefined,
        paths: d.steps ? uPlot.paths.stepped({ align: -1 }) : undefined, points: { show: false },
      }))],
      bands: data.flatMap((d, i) => (d.above ? [{ series: [i + 1, i + 2], fill: colour(d.tone + "-fill") }] : [])),
      hooks: {
        setCursor: [(u) => !this.placing && u.cursor.left >= 0 && u.cursor.idx !== null && this.props.cursor.set(u.cursor.idx)],
      },
    }, this.data(), this.element);
    this.place();
  }

  render() {
    return html`<div class=${"plot" + (this.props.axis ? " axis" : "")} aria-hidden="true" ref=${(element) => (this.element = element || this.element)}></div>`;
  }
}
