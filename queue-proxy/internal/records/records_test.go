package records

import (
	"strings"
	"testing"
	"unicode/utf8"

	"ebb.dev/ebb/wire"
)

func TestATextOfAClientIsMadeValid(t *testing.T) {
	for given, want := range map[string]string{
		"/a": "/a", "/\x01\t\n\x7f": "/\x7f", "/\xff": "/\uFFFD",
	} {
		if got := plain(given); got != want {
			t.Errorf("%q became %q, want %q", given, got, want)
		}
	}
	if got := plain(strings.Repeat("ü", 500)); got != wire.Clip(got) || !utf8.ValidString(got) {
		t.Errorf("%q", got)
	}
}
