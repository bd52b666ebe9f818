// Package watchtest lets a test wait until an in-memory clientset is watched.
//
// Owns: nothing. Reads: nothing. Writes: nothing. Never: outside of tests.
//
// Informers list first and watch then. An API server tells a watch all that came after the list; client-go's object tracker, which stands in for it,
// begins when it is asked, so what a test writes in between is lost to the informer, and the test waits for ever.
package watchtest

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

// Client is a generated fake clientset.
type Client interface {
	PrependWatchReactor(resource string, reaction clienttesting.WatchReactionFunc)
	Tracker() clienttesting.ObjectTracker
}

// Watches counts the watches of a client from now on; await returns when so many more have begun.
func Watches(t testing.TB, client Client) (await func(watches int)) {
	begun := make(chan struct{}, 1000)
	client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		var options metav1.ListOptions
		if a, ok := action.(clienttesting.WatchActionImpl); ok {
			options = a.ListOptions
		}
		w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace(), options)
		if err != nil {
			return true, nil, err
		}
		begun <- struct{}{}
		return true, w, nil
	})
	return func(watches int) {
		t.Helper()
		for i := range watches {
			select {
			case <-begun:
			case <-t.Context().Done():
				t.Fatalf("%d watches began, not %d", i, watches)
			}
		}
	}
}
