package audit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWritesCountsWhatWasLoggedSinceTheLastCall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	line := func(account, verb, object, code string) string {
		return `{"kind":"Event","level":"Metadata","verb":"` + verb + `","user":{"username":"system:serviceaccount:knative-serving:` + account +
			`"},"objectRef":{` + object + `},"responseStatus":{"metadata":{},"code":` + code + "}}\n"
	}
	write := func(text string) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	service := `"resource":"services","namespace":"ns","name":"a","apiGroup":"serving.knative.dev","subresource":"status"`
	event := `"resource":"events","namespace":"ns"`
	write(line("controller", "create", event, "201"))
	t.Setenv("EBB_AUDIT_LOG", path)
	a, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	check := func(want map[string]int) {
		t.Helper()
		got, err := a.Writes("ns")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	check(map[string]int{})
	last := line("controller", "create", event, "403")
	write(line("controller", "update", service, "200") + line("controller", "update", service, "200") +
		line("autoscaler", "create", `"resource":"events","namespace":"other"`, "201") + last[:30])
	check(map[string]int{"controller update services/status 200": 2})
	write(last[30:])
	check(map[string]int{"controller create events 403": 1})

	t.Setenv("EBB_AUDIT_LOG", "")
	if none, err := Open(); err != nil {
		t.Error(err)
	} else if counts, err := none.Writes("ns"); err != nil || len(counts) > 0 {
		t.Errorf("without a log it counts %v, %v", counts, err)
	}
}
