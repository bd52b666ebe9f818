package wire

import (
	"fmt"
	"slices"
	"testing"
)

func TestSilentNodesGoBothWays(t *testing.T) {
	var many []string
	for i := range MaxSilentNodes + 5 {
		many = append(many, fmt.Sprint("node-", i))
	}
	for _, names := range [][]string{nil, {"b"}, {"b", "c.example.com"}, many} {
		got, want := DecodeSilentNodes(EncodeSilentNodes(names)), names[:min(len(names), MaxSilentNodes)]
		if !slices.Equal(got, want) {
			t.Errorf("%d became %d: %.80v", len(names), len(got), got)
		}
	}
}
