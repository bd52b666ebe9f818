package reference

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"

	"knative.dev/pkg/apis"
)

// answers lists what a client gets from Ebb instead of the answer of the user's container.
func answers(s *Source) string {
	b := page("Answers", "What a client gets from Ebb, and not from the container. `...` stands for what is known only when it happens. Answers to\n"+
		"components of Ebb, on ports of their own, are not listed. The gateway's own are in\n"+
		"[Troubleshooting](../troubleshooting.md#the-gateway), and what to do about each of these, too.")
	var rows [][]string
	add := func(pkg, status, text string) {
		if n, err := strconv.Atoi(status); err == nil && n >= 400 && text != "" && text != Unknown {
			rows = append(rows, []string{status, code(text), component(pkg)})
		}
	}
	s.Literals("forward.Reply", func(pkg string, x *ast.CompositeLit) {
		for _, row := range s.Texts(element(x, 0, "Status"), element(x, 1, "Body")) {
			add(pkg, row[0], row[1])
		}
	}, "forward", "activator/internal/chain", "activator/internal/cold", "queue-proxy/internal/chain")
	s.Calls(func(pkg, callee string, x *ast.CallExpr) {
		if callee == "http.Error" {
			for _, row := range s.Texts(x.Args[2], x.Args[1]) {
				add(pkg, row[0], row[1])
			}
		}
	}, "courier", "dashboard")
	table(b, []string{"Status", "Text", "From"}, sorted(rows))
	return b.String()
}

// faults are what makes a refusal, with its message: which arguments are the path and the details.
var faults = map[string]struct {
	message       *apis.FieldError
	path, details int // 0 is no details
}{
	"apis.ErrInvalidValue":     {apis.ErrInvalidValue(Unknown, ""), 1, 2},
	"apis.ErrOutOfBoundsValue": {apis.ErrOutOfBoundsValue(Unknown, Unknown, Unknown, ""), 3, 0},
	"apis.ErrDisallowedFields": {apis.ErrDisallowedFields(), 0, 0},
	"apis.ErrMissingField":     {apis.ErrMissingField(), 0, 0},
	"apis.ErrMultipleOneOf":    {apis.ErrMultipleOneOf(), 0, 0},
	"apis.ErrMissingOneOf":     {apis.ErrMissingOneOf(), 0, 0},
	"apis.ErrInvalidKeyName":   {apis.ErrInvalidKeyName(Unknown, ""), 1, 2},
	"apis.ErrGeneric":          {apis.ErrGeneric(""), 1, 0}, // its first argument is the message
}

// refusals lists what admission refuses, beyond what the definitions of the kinds say.
func refusals(s *Source) string {
	b := page("Refusals", "What the webhook says when it refuses an object, or warns about it; `...` stands for the value. A refusal names the field\n"+
		"and says what is expected, so it needs no other explanation. [Kinds](kinds.md) lists what the API server itself checks,\n"+
		"[Settings](../settings.md) the legal values of settings.")
	fields := map[[2]string][]string{}
	add := func(path, text, details string) {
		if (text == Unknown || text == "") && (details == Unknown || details == "") {
			return
		}
		if expected, _, ok := strings.Cut(details, ", found "); ok {
			details = expected + ", found " + Unknown
		}
		said := [2]string{text, details}
		always := fields[said]
		if path = strings.Trim(path, ", "); path != "" && !strings.Contains(path, Unknown) && !slices.Contains(always, code(path)) {
			always = append(always, code(path))
		}
		fields[said] = always
	}
	s.Calls(func(pkg, callee string, x *ast.CallExpr) {
		fault, ok := faults[callee]
		if !ok || len(x.Args) <= max(fault.path, fault.details-1) {
			return
		}
		var text, details ast.Expr
		if fault.message.Message == "" {
			text = x.Args[0]
		}
		if fault.details > 0 && len(x.Args) > fault.details {
			details = x.Args[fault.details]
		}
		for _, row := range s.Texts(text, details) {
			add(s.Text(x.Args[fault.path]), fault.message.Message+row[0], row[1])
		}
	}, "api/serving", "api/names", "webhook")
	s.Literals("apis.FieldError", func(pkg string, x *ast.CompositeLit) {
		for _, row := range s.Texts(element(x, 0, "Message"), element(x, 3, "Details")) {
			add(s.Text(element(x, 1, "Paths")), row[0], row[1])
		}
	}, "api/serving", "api/names", "webhook")
	var rows [][]string
	for said, paths := range fields {
		slices.Sort(paths)
		rows = append(rows, []string{said[0], said[1], strings.Join(paths, ", ")})
	}
	table(b, []string{"Message", "Details", "Field, where it is always the same"}, sorted(rows))
	return b.String()
}

var sprintf = ast.NewIdent("Sprintf")
