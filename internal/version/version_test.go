package version

import (
	"bytes"
	"strings"
	"testing"
)

func TestAProgramTellsItsVersionOnlyWhenAskedForNothingElse(t *testing.T) {
	for _, row := range []struct {
		args []string
		want bool
	}{
		{[]string{"/ko-app/activator", "--version"}, true},
		{[]string{"/ko-app/activator", "-version"}, true},
		{[]string{"/ko-app/activator"}, false},
		{[]string{"/ko-app/node-agent", "guard", "--version"}, false},
		{nil, false},
	} {
		var out bytes.Buffer
		if got := asked(row.args, &out); got != row.want {
			t.Errorf("%v: %v", row.args, got)
		}
		if said := out.String(); strings.HasPrefix(said, "activator devel (go") != row.want {
			t.Errorf("%v: printed %q", row.args, said)
		}
	}
}
