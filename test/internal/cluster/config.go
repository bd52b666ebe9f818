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

// noteAnnotation is where a ConfigMap keeps what SetConfig changed, until it is put back: a run
// that is interrupted cannot do it any more.
const noteAnnotation = "ebb.dev/set-by-a-test"

// change is what became of one key. nil is an absent key.
type change struct {
	Was *string `json:"was"`
	Set *string `json:"set"`
}

// notes are the changes that are to be put back, by key.
type notes map[string]change

func notesOf(m *corev1.ConfigMap) notes {
	n := notes{}
	// What cannot be read is not ours.
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

// setKeys changes a ConfigMap, notes it, and returns what the keys were.
func setKeys(m *corev1.ConfigMap, keys map[string]*string) (before map[string]*string) {
	n := notesOf(m)
	before = map[string]*string{}
	for key, value := range keys {
		before[key] = get(m, key)
		was := before[key]
		if earlier, noted := n[key]; noted && same(earlier.Set, was) {
			was = earlier.Was // of two changes, one within the other, the first knows what somebody had there
		}
		put(m, key, value)
		if n[key] = (change{was, value}); same(was, value) {
			delete(n, key)
		}
	}
	n.keep(m)
	return before
}

// restoreKeys puts back what is noted, and returns the keys. A key that somebody has changed since
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

// editConfig changes a ConfigMap of the system namespace, whatever else happens to it meanwhile.
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
	return fmt.Errorf("write ConfigMap %s/%s: somebody else keeps changing it", System, name)
}

// SetConfig sets keys of a ConfigMap of the system namespace and returns how to put them back. If
// that is never called, RestoreConfig does it.
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
		return c.editConfig(ctx, name, func(m *corev1.ConfigMap) {
			ours := map[string]*string{}
			for key, value := range before {
				if same(get(m, key), wanted[key]) { // else somebody has changed it since
					ours[key] = value
				}
			}
			setKeys(m, ours)
		})
	}, nil
}

// RestoreConfig puts back what a run that was interrupted has left, and returns "<ConfigMap>/<key>"
// of each. Call it before SetConfig, and never while another run is under way.
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
