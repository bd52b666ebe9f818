package plan

import (
	"testing"

	"ebb.dev/ebb/settings"
)

func TestToWhomTheSettingsGiveAHost(t *testing.T) {
	const annotated = `{{with index .Annotations "host"}}{{.}}{{else}}{{.Name}}.{{.Namespace}}{{end}}.{{.Domain}}`
	for _, row := range []struct {
		template, host, namespace string
		want                      bool
	}{
		{"", "hello.ns.example.com", "ns", true},
		{"", "blue-hello.ns.example.com", "ns", true},
		{"", "hello.ns.internal.example.net", "ns", true},
		{"", "hello.ns.example.com", "other", false},
		{"", "shop.example.com", "ns", false},
		{"", "a.b.ns.example.com", "ns", false},
		{"", "hello.nsxexample.com", "ns", false},
		{"", "hello.ns.example.com.evil.org", "ns", false},
		{"", "hello.ns.svc.cluster.local", "ns", false},
		{"{{.Name}}-{{.Namespace}}.{{.Domain}}", "a-b-c.example.com", "c", true},
		{"{{.Name}}-{{.Namespace}}.{{.Domain}}", "a-b-c.example.com", "b-c", true},
		{"{{.Name}}-{{.Namespace}}.{{.Domain}}", "a-b-c.example.com", "b", false},
		{"{{.Name}}.{{.Domain}}", "a.example.com", "anybody", true},
		{"{{.Namespace}}.{{.Domain}}", "ns.example.com", "ns", true},
		{"{{.Namespace}}.{{.Domain}}", "ns.example.com", "other", false},
		{annotated, "hello.ns.example.com", "ns", true},
		{annotated, "hello.ns.example.com", "other", false},
		{`{{slice .Name 0 1}}.{{.Domain}}`, "h.example.com", "ns", false},
	} {
		network := map[string]string{}
		if row.template != "" {
			network["domain-template"] = row.template
		}
		s, err := settings.Parse(map[string]map[string]string{settings.NetworkName: network, settings.DomainName: {
			"example.com": "", "internal.example.net": "{selector: {tier: internal}}", "svc.cluster.local": "{selector: {tier: local}}"}})
		if err != nil {
			t.Fatal(err)
		}
		if got := Gives(s, "cluster.local", row.host, row.namespace); got != row.want {
			t.Errorf("template %q gives %s to %s: %v, want %v", row.template, row.host, row.namespace, got, row.want)
		}
	}
}
