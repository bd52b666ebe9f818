package cluster

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func text(s string) *string { return &s }

func TestWhatAnInterruptedRunHasSetIsPutBack(t *testing.T) {
	fresh := func() *corev1.ConfigMap {
		return &corev1.ConfigMap{Data: map[string]string{"stable-window": "90s", "max-scale": "5"}}
	}
	six, ten := map[string]*string{"stable-window": text("6s"), "scale-to-zero-grace-period": text("6s")}, map[string]*string{"stable-window": text("10s")}
	for name, c := range map[string]struct {
		run  func(m *corev1.ConfigMap)
		want map[string]string
		keys []string
	}{
		"a run that was interrupted": {func(m *corev1.ConfigMap) { setKeys(m, six) },
			map[string]string{"stable-window": "90s", "max-scale": "5"}, []string{"scale-to-zero-grace-period", "stable-window"}},
		"a run within a run": {func(m *corev1.ConfigMap) { setKeys(m, six); setKeys(m, ten) },
			map[string]string{"stable-window": "90s", "max-scale": "5"}, []string{"scale-to-zero-grace-period", "stable-window"}},
		"a run that put everything back": {func(m *corev1.ConfigMap) { setKeys(m, setKeys(m, six)) },
			map[string]string{"stable-window": "90s", "max-scale": "5"}, nil},
		"the inner of two was put back": {func(m *corev1.ConfigMap) { setKeys(m, six); setKeys(m, setKeys(m, ten)) },
			map[string]string{"stable-window": "90s", "max-scale": "5"}, []string{"scale-to-zero-grace-period", "stable-window"}},
		"a user edited the key since": {func(m *corev1.ConfigMap) { setKeys(m, six); m.Data["stable-window"] = "30s" },
			map[string]string{"stable-window": "30s", "max-scale": "5"}, []string{"scale-to-zero-grace-period"}},
		"a user edited another key": {func(m *corev1.ConfigMap) { setKeys(m, six); m.Data["max-scale"] = "7" },
			map[string]string{"stable-window": "90s", "max-scale": "7"}, []string{"scale-to-zero-grace-period", "stable-window"}},
		"a user removed the key": {func(m *corev1.ConfigMap) { setKeys(m, six); delete(m.Data, "stable-window") },
			map[string]string{"max-scale": "5"}, []string{"scale-to-zero-grace-period"}},
		"a run after a user's edit of what an interrupted one had set": {func(m *corev1.ConfigMap) { setKeys(m, six); m.Data["stable-window"] = "30s"; setKeys(m, ten) },
			map[string]string{"stable-window": "30s", "max-scale": "5"}, []string{"scale-to-zero-grace-period", "stable-window"}},
		"a note that cannot be parsed": {func(m *corev1.ConfigMap) { m.Annotations = map[string]string{noteAnnotation: "what?"} },
			map[string]string{"stable-window": "90s", "max-scale": "5"}, nil},
		"no run before": {func(*corev1.ConfigMap) {}, map[string]string{"stable-window": "90s", "max-scale": "5"}, nil},
	} {
		m := fresh()
		c.run(m)
		if keys := restoreKeys(m); !cmp.Equal(keys, c.keys) {
			t.Errorf("%s: restored %v, want %v", name, keys, c.keys)
		}
		if diff := cmp.Diff(c.want, m.Data); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if _, noted := m.Annotations[noteAnnotation]; noted {
			t.Errorf("%s: the note is still there", name)
		}
	}
}
