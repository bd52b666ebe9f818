package requestlog

import (
	"encoding/json"
	"strings"
	"testing"
	"text/template"
)

// A client chooses its User-Agent; with a quote in it the default line must still be JSON, and say
// what was sent.
func FuzzTheDefaultLineIsJSON(f *testing.F) {
	line := template.Must(template.New("").Funcs(template.FuncMap{"js": escape}).Parse(`{"userAgent": "{{js .}}"}`))
	for _, agent := range []string{"it's", `"quoted"`, `back\slash`, "line\nbreak", "<b>&=", "\u2028", "\x00", "\xff"} {
		f.Add(agent)
	}
	f.Fuzz(func(t *testing.T, agent string) {
		var b strings.Builder
		if err := line.Execute(&b, agent); err != nil {
			t.Fatal(err)
		}
		var got struct{ UserAgent string }
		if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
			t.Fatalf("%s: %v", b.String(), err)
		}
		if want := strings.ToValidUTF8(agent, "\ufffd"); strings.ToValidUTF8(agent, "") == agent && got.UserAgent != want {
			t.Errorf("logged %q, sent %q", got.UserAgent, agent)
		}
		if strings.Contains(b.String(), "'") || strings.Count(b.String(), "\n") > 0 {
			t.Errorf("%q leaves its string or its line", b.String())
		}
	})
}
