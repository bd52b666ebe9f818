package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
)

// A dashboard is what its author writes: the rest of Grafana's format follows from it.
type dashboard struct {
	file, title, description string
	// ofServices adds the variables namespace and service.
	ofServices bool
	panels     []panel
}

// A panel has one chart. All are of the same size and stand in the order of the list.
type panel struct {
	title, description string
	unit               string // of Grafana: s, reqps, percentunit, bytes, short, none
	kind               string // "" is timeseries
	stacked            bool
	queries            []query
}

// query is a line, or lines, of a chart. The legend may name labels: {{phase}}.
type query struct{ legend, expr string }

// Grafana's own format, as far as it is used.
type (
	object map[string]any
	list   []any
)

var source = object{"type": "prometheus", "uid": "${datasource}"}

const (
	acrossRow = 3
	columns   = 24
	height    = 8
)

// render returns the JSON that Grafana imports.
func (d dashboard) render() ([]byte, error) {
	variables := list{object{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}}
	if d.ofServices {
		variables = append(variables,
			variable("namespace", `label_values(kn_revision_pods_requested, k8s_namespace_name)`),
			variable("service", `label_values(kn_revision_pods_requested{k8s_namespace_name=~"$namespace"}, kn_service_name)`))
	}
	var panels list
	for i, p := range d.panels {
		panels = append(panels, p.render(i))
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // a > in a query stays readable
	encoder.SetIndent("", "  ")
	err := encoder.Encode(object{
		"uid": "ebb-" + d.file, "title": d.title, "description": d.description, "tags": list{"ebb"},
		"schemaVersion": 39, "editable": true, "refresh": "10s", "time": object{"from": "now-1h", "to": "now"},
		"templating": object{"list": variables}, "panels": panels,
	})
	return text.Bytes(), err
}

func variable(name, query string) object {
	return object{"name": name, "type": "query", "datasource": source, "query": query, "definition": query,
		"refresh": 2, "includeAll": true, "multi": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"}, "sort": 1}
}

func (p panel) render(i int) object {
	var targets list
	for n, q := range p.queries {
		targets = append(targets, object{"refId": string(rune('A' + n)), "datasource": source, "expr": q.expr, "legendFormat": q.legend})
	}
	custom := object{"showPoints": "never", "fillOpacity": 10}
	if p.stacked {
		custom["stacking"], custom["fillOpacity"] = object{"mode": "normal"}, 40
	}
	const width = columns / acrossRow
	return object{
		"id": i + 1, "type": cmp.Or(p.kind, "timeseries"), "title": p.title, "description": p.description, "datasource": source,
		"gridPos":     object{"x": i % acrossRow * width, "y": i / acrossRow * height, "w": width, "h": height},
		"fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0, "custom": custom}, "overrides": list{}},
		"options":     object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi"}},
		"targets":     targets,
	}
}

// Parts of queries.

// rate is the increase a second over what a pixel of the chart shows.
func rate(selector string) string { return "rate(" + selector + "[$__rate_interval])" }

func sumBy(labels, expr string) string { return fmt.Sprintf("sum by (%s) (%s)", labels, expr) }

// quantiles are the given lines of a histogram.
func quantiles(histogram, by string, of ...float64) (all []query) {
	labels, legend := "le", ""
	if by != "" {
		labels, legend = "le, "+by, " {{"+by+"}}"
	}
	for _, q := range of {
		all = append(all, query{fmt.Sprintf("p%g%s", 100*q, legend), fmt.Sprintf("histogram_quantile(%g, %s)", q, sumBy(labels, rate(histogram)))})
	}
	return all
}
