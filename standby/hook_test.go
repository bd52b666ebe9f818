package standby

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestAHookIsAMethodAPortAPathAndABound(t *testing.T) {
	for text, want := range map[string]Hook{
		"/sleep":                       {"POST", 0, "/sleep", time.Second},
		"GET /":                        {"GET", 0, "/", time.Second},
		":8000/sleep?level=1":          {"POST", 8000, "/sleep?level=1", time.Second},
		"  PUT   :1/a/b   250ms ":      {"PUT", 1, "/a/b", 250 * time.Millisecond},
		"/sleep 1m":                    {"POST", 0, "/sleep", time.Minute},
		"/" + strings.Repeat("a", 999): {"POST", 0, "/" + strings.Repeat("a", 999), time.Second},
	} {
		got, err := ParseHook(text)
		if err != nil || got != want {
			t.Errorf("%.40q: %+v, %v", text, got, err)
		}
		if again, err := ParseHook(got.String()); err != nil || again != got {
			t.Errorf("%.40q: %q is read as %+v, %v", text, got, again, err)
		}
	}
	for text, why := range map[string]string{
		"":                              "want ",
		"POST":                          "want ",
		"DELETE /sleep":                 "neither",
		"sleep":                         "neither",
		"http://elsewhere/":             "neither",
		"//\x7f":                        "neither",
		"/a%zz":                         "neither",
		"/a#b":                          "neither",
		"/schlaf\u00e9":                 "neither",
		":0/a":                          "port",
		":65536/a":                      "port",
		":-1/a":                         "port",
		":/a":                           "port",
		":80":                           "neither",
		"/a 0s":                         "bound",
		"/a 1h":                         "bound",
		"/a never":                      "bound",
		"/a 1s 2s":                      "want ",
		"POST /a 1s 2s":                 "want ",
		"/" + strings.Repeat("a", 1000): "longer than 1000",
		"/" + strings.Repeat("a", 2000): "want ",
	} {
		if h, err := ParseHook(text); err == nil || !strings.Contains(err.Error(), why) || len(err.Error()) > 200 {
			t.Errorf("%.40q: %+v, %v, want %q", text, h, err, why)
		}
	}
}

func FuzzAHookIsReadAsItIsWritten(f *testing.F) {
	for _, text := range []string{"/sleep", "GET :8000/sleep?level=1 5s", "PUT /%41 1ms", ":1/"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h, err := ParseHook(text)
		if err != nil {
			return
		}
		if again, err := ParseHook(h.String()); err != nil || again != h {
			t.Errorf("%q: %+v is written as %q and read as %+v, %v", text, h, h, again, err)
		}
		if _, err := http.NewRequest(h.Method, "http://127.0.0.1:1"+h.Path, nil); err != nil || h.Bound <= 0 || h.Bound > MaxHookTime {
			t.Errorf("%q: %+v cannot be called: %v", text, h, err)
		}
	})
}
