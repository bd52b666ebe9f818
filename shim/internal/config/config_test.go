package config

import (
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/golden"
)

func parse(env map[string]string, command ...string) (*Config, error) {
	return Parse(func(name string) string { return env[name] }, command, 2)
}

func TestTheDefaultsFitTheMode(t *testing.T) {
	common := Config{Command: []string{"cat"}, Port: 8080, Queue: 100, Grace: 5 * time.Second, ContentType: "application/octet-stream", LogRate: 1000, Restarts: 5}
	for mode, change := range map[Mode]func(*Config){
		HTTP: func(*Config) {},
		Streaming: func(c *Config) {
			c.Workers, c.Timeout, c.MaxRequest, c.MaxResponse = 8, 5*time.Minute, 100<<20, 1<<30
		},
		Serializing: func(c *Config) {
			c.Workers, c.Timeout, c.MaxRequest, c.MaxResponse = 8, 5*time.Minute, 100<<20, 10<<20
		},
	} {
		want := common
		want.Mode = mode
		change(&want)
		got, err := parse(map[string]string{"SHIM_MODE": string(mode)}, "cat")
		if err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: %+v, %v, want %+v", mode, got, err, want)
		}
	}
}

func TestEverythingCanBeSet(t *testing.T) {
	got, err := parse(map[string]string{"SHIM_MODE": "streaming", "SHIM_COMMAND": `["a b", "c"]`, "PORT": "1", "SHIM_PROGRAM_PORT": "2",
		"SHIM_WORKERS": "3", "SHIM_QUEUE": "4", "SHIM_TIMEOUT": "5s", "SHIM_GRACE": "6ms", "SHIM_MAX_REQUEST": "7", "SHIM_MAX_RESPONSE": "8Ki",
		"SHIM_RESPONSE_HEADERS": "true", "SHIM_CONTENT_TYPE": "text/plain", "SHIM_LOG_RATE": "9", "SHIM_LOG_LEVEL": "debug", "SHIM_RESTARTS": "10"})
	want := &Config{Streaming, []string{"a b", "c"}, 1, 2, 3, 4, 5 * time.Second, 6 * time.Millisecond, 7, 8 << 10, true, "text/plain", 9, slog.LevelDebug, 10}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := parse(map[string]string{"SHIM_MODE": "http", "SHIM_COMMAND": " python3  app.py "}); err != nil || !reflect.DeepEqual(got.Command, []string{"python3", "app.py"}) {
		t.Errorf("words: %+v, %v", got, err)
	}
}

func TestEverythingThatIsWrongIsNamedAtOnce(t *testing.T) {
	wrong := map[string]string{"SHIM_MODE": "fork", "SHIM_COMMAND": `["a"`, "PORT": "http", "SHIM_PROGRAM_PORT": "-1", "SHIM_WORKERS": "many",
		"SHIM_QUEUE": "-1", "SHIM_TIMEOUT": "5", "SHIM_GRACE": "-1s", "SHIM_MAX_REQUEST": "1MB", "SHIM_MAX_RESPONSE": "9999999999Gi",
		"SHIM_RESPONSE_HEADERS": "maybe", "SHIM_CONTENT_TYPE": "a\nb", "SHIM_LOG_RATE": "-1", "SHIM_LOG_LEVEL": "loud", "SHIM_RESTARTS": "-1"}
	_, err := parse(wrong)
	for name, value := range wrong {
		if err == nil || !strings.Contains(err.Error(), "variable "+name+": ") {
			t.Errorf("%s=%q is not named in: %v", name, value, err)
		}
	}
	for _, test := range []struct{ mode, port, want string }{
		{"", "", "variable SHIM_MODE: must be http, streaming or serializing"},
		{"streaming", "", "no program"},
		{"http", "8080", "variable SHIM_PROGRAM_PORT: 8080 is PORT"},
	} {
		if _, err := parse(map[string]string{"SHIM_MODE": test.mode, "SHIM_PROGRAM_PORT": test.port}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want %q", err, test.want)
		}
	}
}

func TestTheHelpFitsATerminal(t *testing.T) {
	for line := range strings.Lines(Help()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 120 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestTheDocumentListsEveryVariable(t *testing.T) {
	const file, begin, end = "../../../docs/shim.md", "<!-- variables -->\n", "<!-- end -->\n"
	golden.Between(t, file, begin, end, table())
}

// table is the table of the variables in docs/shim.md.
func table() string {
	var b strings.Builder
	b.WriteString("| Variable | Default | Effect |\n|---|---|---|\n")
	for _, v := range variables(&Config{}) {
		byDefault := "unset"
		if v.Default != "" {
			byDefault = "`" + v.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.name, byDefault, v.effect)
	}
	return b.String()
}
