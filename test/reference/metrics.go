package reference

import (
	"go/ast"
	"strings"
)

// kindsOfMetrics are what makes a metric, by its type.
var kindsOfMetrics = map[string]string{"NewCounter": "counter", "NewGauge": "gauge", "NewHistogram": "histogram", "NewSummary": "summary"}

// metrics lists what components show to Prometheus: each prometheus.New*, and what queue-proxy
// prints itself.
func metrics(s *Source) string {
	var rows [][]string
	add := func(pkg, name, kind, labels, help string) {
		if strings.HasPrefix(name, Unknown) {
			return
		}
		if labels == "" {
			labels = "none"
		}
		rows = append(rows, []string{component(pkg), code(name), kind, labels, help})
	}
	folders := []string{"activator", "autoscaler", "controller", "courier", "dashboard", "internal", "node-agent", "queue-proxy", "webhook"}
	s.Calls(func(pkg, callee string, x *ast.CallExpr) {
		name, ours := strings.CutPrefix(callee, "prometheus.")
		if !ours {
			return
		}
		if name == "NewDesc" {
			for _, row := range s.Texts(x.Args[0], x.Args[1], x.Args[2], x.Args[3]) {
				kind := "gauge"
				if strings.HasSuffix(row[0], "_total") {
					kind = "counter"
				}
				add(pkg, row[0], kind, join(row[2], row[3]), row[1])
			}
			return
		}
		kind := kindsOfMetrics[strings.TrimSuffix(strings.TrimSuffix(name, "Vec"), "Func")]
		if kind == "" || len(x.Args) == 0 {
			return
		}
		options, ok := x.Args[0].(*ast.CompositeLit)
		if !ok {
			return
		}
		var labels ast.Expr
		if strings.HasSuffix(name, "Vec") {
			labels = x.Args[1]
		}
		for _, row := range s.Texts(element(options, 0, "Name"), element(options, 0, "Help"), labels, element(options, 0, "ConstLabels")) {
			add(pkg, row[0], kind, join(row[2], row[3]), row[1])
		}
	}, folders...)
	s.Literals("usermetrics.family", func(pkg string, x *ast.CompositeLit) {
		for _, row := range s.Texts(element(x, 1, "shown"), element(x, 2, "kind"), element(x, 3, "labels"), element(x, 4, "help")) {
			add(pkg, row[0], row[1], "those of the pod"+strings.TrimSuffix(", "+strings.ReplaceAll(row[2], ".", "_"), ", "), row[3])
		}
	}, "queue-proxy/internal/usermetrics")
	b := page("Metrics", "What the components show to Prometheus, each at `/metrics` of its port 9090, queue-proxy's own at 9091. [Monitoring](../monitoring.md) says\n"+
		"how to collect them and what to look at. Those of `all` come from each component, besides the metrics `go_*` and\n"+
		"`process_*` of the Prometheus client. A name that ends in `_seconds` or `_bytes` has this unit; `_total` counts since\n"+
		"the process began.")
	table(b, []string{"Component", "Metric", "Type", "Labels", "Meaning"}, sorted(rows))
	return b.String()
}

func join(parts ...string) string {
	var all []string
	for _, p := range parts {
		if p != "" {
			all = append(all, p)
		}
	}
	return strings.Join(all, ", ")
}
