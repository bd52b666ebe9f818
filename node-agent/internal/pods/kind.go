package pods

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/standby"
)

const (
	// revisionLabel is on the pods of Ebb's revisions.
	revisionLabel = "serving.knative.dev/revision"
	// sidecar is the container without which a pod of a revision cannot sleep.
	sidecar = "queue-proxy"
	// maxText bounds a label or annotation that is kept.
	maxText = 4096
)

// Pod is the part of a Pod that the agent needs. The whole kind and the other kinds that come with
// it take 6 MiB of memory on every node, and a Pod itself may hold more than a mebibyte of what its
// owner likes: UnmarshalJSON keeps none of that.
type Pod struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	Status Status
}

// Status is the part of a Pod's status that the agent needs.
type Status struct {
	Phase             string            `json:"phase"`
	PodIP             string            `json:"podIP"`
	ContainerStatuses []ContainerStatus `json:"containerStatuses"`
}

// ContainerStatus is the part of a container's status that the agent needs.
type ContainerStatus struct {
	Name        string `json:"name"`
	ContainerID string `json:"containerID"`
	State       struct {
		Running *struct{} `json:"running"`
	} `json:"state"`
}

// UnmarshalJSON keeps what the agent reads.
func (p *Pod) UnmarshalJSON(text []byte) error {
	var all struct {
		metav1.TypeMeta
		Metadata struct {
			Name              string            `json:"name"`
			Namespace         string            `json:"namespace"`
			UID               types.UID         `json:"uid"`
			ResourceVersion   string            `json:"resourceVersion"`
			DeletionTimestamp *time.Time        `json:"deletionTimestamp"`
			Labels            map[string]string `json:"labels"`
			Annotations       map[string]string `json:"annotations"`
		} `json:"metadata"`
		Status Status `json:"status"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("read a pod: %w", err)
	}
	m := all.Metadata
	*p = Pod{TypeMeta: all.TypeMeta, Status: all.Status, ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID,
		ResourceVersion: m.ResourceVersion, Labels: only(m.Labels, revisionLabel),
		Annotations: only(m.Annotations, standby.Containers, metav1.InitialEventsAnnotationKey)}}
	if m.DeletionTimestamp != nil {
		p.DeletionTimestamp = &metav1.Time{Time: *m.DeletionTimestamp}
	}
	return nil
}

func only(all map[string]string, keys ...string) map[string]string {
	kept := map[string]string{}
	for _, key := range keys {
		if v, ok := all[key]; ok && len(v) <= maxText {
			kept[key] = v
		}
	}
	return kept
}

// PodList is a list of Pods.
type PodList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Pod `json:"items"`
}

// DeepCopyObject returns p itself: nobody changes a Pod here.
func (p *Pod) DeepCopyObject() runtime.Object { return p }

// DeepCopyObject returns l itself: nobody changes a list here.
func (l *PodList) DeepCopyObject() runtime.Object { return l }

// sleeps reports whether the pod may be frozen: it is one of a revision, runs, and its controller
// has named containers.
func (p *Pod) sleeps() bool {
	if p.Annotations[standby.Containers] == "" || p.Labels[revisionLabel] == "" || p.DeletionTimestamp != nil || p.Status.Phase != "Running" {
		return false
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == sidecar {
			return true
		}
	}
	return false
}

// containers returns the IDs of the containers that may be frozen: those that the controller has
// named in the pod's annotation, never others that were injected, such as the sidecar of a mesh.
func (p *Pod) containers() ([]string, error) {
	var ids []string
	for name := range strings.SplitSeq(p.Annotations[standby.Containers], ",") {
		id := ""
		for _, c := range p.Status.ContainerStatuses {
			if c.Name == name && c.State.Running != nil {
				_, id, _ = strings.Cut(c.ContainerID, "://")
			}
		}
		if id == "" {
			return nil, fmt.Errorf("container %s does not run", name)
		}
		if name == sidecar {
			return nil, fmt.Errorf("container %s is the one that wakes the pod", name)
		}
		ids = append(ids, id)
	}
	return ids, nil
}
