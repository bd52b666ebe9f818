package migrate

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"

	"ebb.dev/ebb/api/names"
)

// StateName is the ConfigMap in the system namespace that remembers a move.
const StateName = "ebb-migration"

// Phases of a move.
const (
	applying    = "apply"
	rollingBack = "rollback"
)

// state is how far a move came, and what was there before.
type state struct {
	Phase string `json:"phase"`
	// Knative is the version that was there.
	Knative string `json:"knative"`
	// NamedByHost tells that the plugin gives HTTPRoutes the name of their host, as Ebb does.
	NamedByHost bool `json:"namedByHost,omitempty"`
	// Done are the steps of the phase that are complete.
	Done []string `json:"done"`
	// Before are objects of Knative, and those that Ebb's manifests have too, as they were.
	Before []Object `json:"-"`
	// Made names the objects of Ebb's manifests that were not there.
	Made []reference `json:"made"`
}

// reference names an object.
type reference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

func referTo(o Object) reference {
	return reference{o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName()}
}

func (r reference) object() Object { return object(r.APIVersion, r.Kind, r.Namespace, r.Name) }

// keys of the ConfigMap.
const (
	stateKey  = "state.json"
	beforeKey = "before.json.gz"
)

// load reads the state, nil if there is no move.
func (c *Cluster) load(ctx context.Context) (*state, error) {
	m, err := c.Kube.CoreV1().ConfigMaps(names.SystemNamespace).Get(ctx, StateName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read how far the move is: %w", err)
	}
	s := &state{}
	if err := json.Unmarshal([]byte(m.Data[stateKey]), s); err != nil {
		return nil, fmt.Errorf("read the ConfigMap %s/%s, which somebody may have edited: %w", names.SystemNamespace, StateName, err)
	}
	if s.Before, err = unpack(m.BinaryData[beforeKey]); err != nil {
		return nil, fmt.Errorf("read the ConfigMap %s/%s, which somebody may have edited: %w", names.SystemNamespace, StateName, err)
	}
	return s, nil
}

// begin writes the state of a new move. Before, nothing was changed.
func (c *Cluster) begin(ctx context.Context, s *state) error {
	packed, err := pack(s.Before)
	if err != nil {
		return err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: StateName, Namespace: names.SystemNamespace,
		Annotations: map[string]string{"ebb.dev/about": "what `kubectl ebb migrate --rollback` needs"}},
		Data: map[string]string{stateKey: string(text)}, BinaryData: map[string][]byte{beforeKey: packed}}
	_, err = c.Kube.CoreV1().ConfigMaps(names.SystemNamespace).Create(ctx, m, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("write down what is there: %w", err)
	}
	return nil
}

// save writes how far the move is.
func (c *Cluster) save(ctx context.Context, s *state) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		api := c.Kube.CoreV1().ConfigMaps(names.SystemNamespace)
		m, err := api.Get(ctx, StateName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		m.Data[stateKey] = string(text)
		_, err = api.Update(ctx, m, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("write down how far the move is: %w", err)
	}
	return nil
}

func pack(objects []Object) ([]byte, error) {
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(zip).Encode(objects); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	const most = 900 << 10 // an object of the API has less than 1 MiB
	if out.Len() > most {
		return nil, fmt.Errorf("what is in %s takes %d KiB packed, more than the %d that fit in a ConfigMap", names.SystemNamespace, out.Len()>>10, most>>10)
	}
	return out.Bytes(), nil
}

func unpack(packed []byte) ([]Object, error) {
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(zip, largest))
	if err != nil {
		return nil, err
	}
	var contents []map[string]any
	if err := json.Unmarshal(text, &contents); err != nil {
		return nil, err
	}
	objects := make([]Object, len(contents))
	for i, content := range contents {
		objects[i] = &unstructured.Unstructured{Object: content}
	}
	return objects, nil
}

// had returns an object as it was before the move, nil if it was not there.
func (s *state) had(o Object) Object {
	for _, before := range s.Before {
		if id(before) == id(o) {
			return before
		}
	}
	return nil
}
