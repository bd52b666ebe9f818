package apiservertest

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

// Watches lets a test wait until a fake clientset of client-go is watched: await returns when that
// many watches have begun.
//
// Informers list, then watch. An API server sends a watch everything that came after the list.
// client-go's fake begins with what comes after the call, so an informer never sees what a test
// writes in between.
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
