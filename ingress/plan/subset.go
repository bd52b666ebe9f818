package plan

import (
	"k8s.io/apimachinery/pkg/util/sets"
	"knative.dev/pkg/hash"
)

// Subset returns n of the activators for a revision, by consistent hashing of its name. So a
// revision keeps its activators when others come and go, and revisions are spread over all
// activators. Of the same activators, a smaller n chooses some of those that a larger one does. n =
// 0 means all.
func Subset(revision string, n int, activators sets.Set[string]) sets.Set[string] {
	if n <= 0 || len(activators) <= n {
		return activators
	}
	return hash.ChooseSubset(activators, n, revision)
}
