package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// noteAnnotation is where a ConfigMap records what SetConfig changed, so that a later run can
// restore it if this one is interrupted.
const noteAnnotation = "ebb.dev/set-by-a-test"

// change is the change of one key. nil means that the key is absent.
type change struct {
	Was *string `json:"was"`
	Set *string `json:"set"`
}

// notes are the changes to restore, by key.
type notes map[string]change

func notesOf(m *corev1.ConfigMap) notes {
	n := notes{}
	// A note that cannot be parsed was not written by SetConfig.
	_ = json.Unmarshal([]byte(m.Annotations[noteAnnotation]), &n)
	if n == nil {
		n = notes{}
	}
	return n
}

func (n notes) keep(m *corev1.ConfigMap) {
	if len(n) == 0 {
		delete(m.Annotations, noteAnnotation)
		return
	}
	text, err := json.Marshal(n)
	if err != nil {
		panic(err) // strings
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[noteAnnotation] = string(text)
}

func get(m *corev1.ConfigMap, key string) *string {
	if value, present := m.Data[key]; present {
		return &value
	}
	return nil
}

func put(m *corev1.ConfigMap, key string, value *string) {
	if value == nil {
		delete(m.Data, key)
		return
	}
	if m.Data == nil {
		m.Data = map[string]string{}
	}
	m.Data[key] = *value
}

func same(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

// setKeys changes keys of a ConfigMap, records the changes, and returns the previous values.
func setKeys(m *corev1.ConfigMap, keys map[string]*string) (before map[string]*string) {
	n := notesOf(m)
	before = map[string]*string{}
	for key, value := range keys {
		before[key] = get(m, key)
		was := before[key]
		if earlier, noted := n[key]; noted && same(earlier.Set, was) {
			was = earlier.Was // of nested changes, the first one knows the user's value
		}
		put(m, key, value)
		if n[key] = (change{was, value}); same(was, value) {
			delete(n, key)
		}
	}
	n.keep(m)
	return before
}

// restoreKeys restores the recorded changes and returns the keys. A key that was changed since
// stays as it is.
func restoreKeys(m *corev1.ConfigMap) (restored []string) {
	n := notesOf(m)
	for _, key := range slices.Sorted(maps.Keys(n)) {
		if same(get(m, key), n[key].Set) {
			put(m, key, n[key].Was)
			restored = append(restored, key)
		}
	}
	notes{}.keep(m)
	return restored
}

// editConfig changes a ConfigMap in the system namespace and retries on conflicts.
func (c *Cluster) editConfig(ctx context.Context, name string, edit func(*corev1.ConfigMap)) error {
	maps := c.Kube.CoreV1().ConfigMaps(System)
	for range 5 {
		current, err := maps.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read ConfigMap %s/%s: %w", System, name, err)
		}
		edit(current)
		if _, err = maps.Update(ctx, current, metav1.UpdateOptions{}); err == nil {
			return nil
		} else if !isConflict(err) {
			return fmt.Errorf("write ConfigMap %s/%s: %w", System, name, err)
		}
	}
	return fmt.Errorf("write ConfigMap %s/%s: too many conflicts", System, name)
}

// SetConfig sets keys of a ConfigMap in the system namespace and returns a function that restores
// them. If that is never called, RestoreConfig restores them.
func (c *Cluster) SetConfig(ctx context.Context, name string, keys map[string]string) (restore func(context.Context) error, err error) {
	wanted := map[string]*string{}
	for key, value := range keys {
		wanted[key] = &value
	}
	var before map[string]*string
	if err := c.editConfig(ctx, name, func(m *corev1.ConfigMap) { before = setKeys(m, wanted) }); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		// The webhook may be broken at the moment.
		return Until(ctx, func() (bool, string, error) {
			err := c.editConfig(ctx, name, func(m *corev1.ConfigMap) {
				ours := map[string]*string{}
				for key, value := range before {
					if same(get(m, key), wanted[key]) { // otherwise it was changed since
						ours[key] = value
					}
				}
				setKeys(m, ours)
			})
			return err == nil, fmt.Sprint(err), nil
		})
	}, nil
}

// RestoreConfig restores what an interrupted run has left, and returns "<ConfigMap>/<key>" for
// each. Call it before SetConfig, and never during another run.
func (c *Cluster) RestoreConfig(ctx context.Context) (restored []string, err error) {
	list, err := c.Kube.CoreV1().ConfigMaps(System).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list ConfigMaps of %s: %w", System, err)
	}
	for i := range list.Items {
		name := list.Items[i].Name
		if _, noted := list.Items[i].Annotations[noteAnnotation]; !noted {
			continue
		}
		var keys []string
		if err := c.editConfig(ctx, name, func(m *corev1.ConfigMap) { keys = restoreKeys(m) }); err != nil {
			return restored, err
		}
		for _, key := range keys {
			restored = append(restored, name+"/"+key)
		}
	}
	return restored, nil
}
