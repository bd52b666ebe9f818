package plan

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
)

// Activators relay requests to two of those that a revision's EndpointSlice names, whatever number
// that is.
func TestASmallerSubsetIsPartOfALargerOne(t *testing.T) {
	for total := range 12 {
		all := sets.New[string]()
		for i := range total {
			all.Insert(fmt.Sprintf("10.0.%d.1", i))
		}
		for i := range 200 {
			revision, before := fmt.Sprintf("rev-%05d", i), sets.New[string]()
			for n := 1; n <= total+1; n++ {
				chosen := Subset(revision, n, all)
				if len(chosen) != min(n, total) || !chosen.IsSuperset(before) || !all.IsSuperset(chosen) {
					t.Fatalf("%s of %d: %d are %v, fewer were %v", revision, total, n, chosen, before)
				}
				before = chosen
			}
		}
		if got := Subset("rev", 0, all); !got.Equal(all) {
			t.Errorf("without a number: %v of %v", got, all)
		}
	}
}
